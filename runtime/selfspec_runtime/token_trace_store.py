"""Traces as files: arrays as safetensors, the rest as JSON beside them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn

from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load, save

from selfspec_runtime.atomic import write_together
from selfspec_runtime.errors import UsageError
from selfspec_runtime.trace_round import TraceRound

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

FORMAT = "selfspec.token_trace/1"
_NUM_AXES = {"token_ids": 1, "target_probs": 1, "layers_agree": 2, "top_ids": 3, "top_probs": 3}


class TraceFile(BaseModel):
    """The JSON part; the fields are those of :class:`~selfspec_runtime.token_trace.TokenTrace`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    prompt_ids: tuple[int, ...]
    pieces: dict[int, str]
    rounds: tuple[TraceRound, ...]
    text: str
    finish_reason: str
    plan: str
    exit_layer: int | None = None
    num_draft_passes: int = 0


def save_trace(path: Path, content: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Writes both files or neither.

    Args:
        path: Either file.
        content: The JSON part.
        arrays: The arrays by name.

    Raises:
        SelfspecError: They cannot be written.
    """
    text = json.dumps({"format": FORMAT, **content}, ensure_ascii=True, allow_nan=False)
    write_together(
        {
            path.with_suffix(".safetensors"): save(dict(arrays), metadata={"format": FORMAT}),
            path.with_suffix(".json"): text.encode() + b"\n",
        }
    )


def load_trace(path: Path, arrays: Mapping[str, str]) -> dict[str, Any]:
    """Reads both files.

    Args:
        path: Either file.
        arrays: Name and dtype of every array.

    Returns:
        Everything by name.

    Raises:
        UsageError: A file is missing, broken, or not a trace.
    """
    content = _content(path.with_suffix(".json"))
    found = _arrays(path.with_suffix(".safetensors"))
    for name, dtype in arrays.items():
        array = found.get(name)
        if array is None or array.dtype != dtype or array.ndim != _NUM_AXES[name]:
            _fail(path, f"the array {name} is missing or of another kind")
    held = {name: getattr(content, name) for name in TraceFile.model_fields}
    return {**held, **{name: found[name] for name in arrays}}


def _content(path: Path) -> TraceFile:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        _fail(path, str(error))
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        _fail(path, f"its format is not {FORMAT}")
    try:
        return TraceFile.model_validate(content)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        _fail(path, f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}")


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        return load(path.read_bytes())
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        _fail(path, str(error))


def _fail(path: Path, fault: str) -> NoReturn:
    message = f"{path} holds no trace that this version can read: {fault}. Pass the file that `save` wrote."
    raise UsageError(message)
