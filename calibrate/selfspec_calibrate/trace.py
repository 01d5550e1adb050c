"""A trace: one search prompt and what plain decoding made of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from selfspec_runtime.atomic import write_atomically
from selfspec_runtime.errors import CalibrationFileError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from selfspec_runtime.engine import Engine
    from selfspec_runtime.generation import GenerationSettings

FORMAT = "selfspec.traces/1"


@dataclass(frozen=True)
class Trace:
    """The tokens of one plain generation.

    Attributes:
        prompt_id: Stable hash of the prompt's content.
        kind: What the prompt is about.
        prompt_ids: Token ids of the prompt, at least one.
        output_ids: Generated token ids, the first one and an ending one included.
    """

    prompt_id: str
    kind: str
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]

    @property
    def num_scored(self) -> int:
        """Rows from which a round of decoding starts: every generated token but the last."""
        return max(len(self.output_ids) - 1, 0)

    @property
    def input_ids(self) -> tuple[int, ...]:
        """All tokens that have a successor in the trace: the prompt and the scored rows."""
        return self.prompt_ids + self.output_ids[:-1]


def middle_context(traces: Sequence[Trace]) -> int:
    """Mean number of positions in the cache over the traces' decoding."""
    lengths = [len(trace.prompt_ids) + len(trace.output_ids) / 2 for trace in traces]
    return round(sum(lengths) / len(lengths))


def record_trace(
    engine: Engine, prompt_id: str, kind: str, prompt_ids: Sequence[int], settings: GenerationSettings
) -> Trace:
    """Decodes one prompt.

    Args:
        engine: An engine whose plan is plain decoding; another one gives the same law, only not the same cost.
        prompt_id: The prompt's identity.
        kind: The prompt's kind.
        prompt_ids: Its token ids.
        settings: How to generate.

    Raises:
        UsageError: The prompt is empty.
        CapacityError: The prompt fills the context.
    """
    generation = engine.generate(list(prompt_ids), settings)
    return Trace(prompt_id, kind, tuple(prompt_ids), generation.token_ids)


def save_traces(path: Path, traces: Sequence[Trace]) -> None:
    """Writes traces as int32 arrays into a safetensors file, atomically.

    Raises:
        SelfspecError: The system refused, for example because the disk is full.
    """
    arrays = {}
    for index, trace in enumerate(traces):
        arrays[f"{index}.prompt"] = torch.tensor(trace.prompt_ids, dtype=torch.int32)
        arrays[f"{index}.output"] = torch.tensor(trace.output_ids, dtype=torch.int32)
    names = [[trace.prompt_id, trace.kind] for trace in traces]
    write_atomically(path, save(arrays, metadata={"format": FORMAT, "traces": json.dumps(names)}))


def load_traces(path: Path) -> list[Trace]:
    """Reads what :func:`save_traces` wrote.

    Raises:
        CalibrationFileError: The file is missing, broken, or holds something else.
    """
    try:
        return _read(path)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        message = (
            f"{path} holds no traces that this version can read ({error}). Delete it; calibrate records them anew."
        )
        raise CalibrationFileError(message) from error


def _read(path: Path) -> list[Trace]:
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        if metadata.get("format") != FORMAT:
            message = f"its format is {metadata.get('format')!r}, not {FORMAT!r}"
            raise ValueError(message)
        ids = {name: tuple(file.get_tensor(name).tolist()) for name in file.keys()}
        names = json.loads(metadata["traces"])
    return [Trace(prompt_id, kind, ids[f"{i}.prompt"], ids[f"{i}.output"]) for i, (prompt_id, kind) in enumerate(names)]
