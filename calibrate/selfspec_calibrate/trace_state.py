"""What scoring needs of a trace: the target's keys, values, hidden states and laws, computed once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from selfspec_calibrate.block_cache import BlockCache
from selfspec_calibrate.target_law import TargetLaw
from selfspec_runtime.processors import Processors
from selfspec_runtime.program import LayerProgram
from selfspec_runtime.stubs import HandOut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from selfspec_calibrate.trace import Trace
    from selfspec_runtime.cache import KVCache
    from selfspec_runtime.sampling import SamplingSettings
    from selfspec_runtime.target import Target

    ProcessorsFor = Callable[[int], Processors]

CHUNK = 512
"""Positions per pass over a prompt: bounds the hidden states and masks that are alive at once."""


@dataclass(frozen=True)
class TraceState:
    """The target's state along one trace.

    The scored rows are the generated tokens but the last: row t stands at position ``len(prompt) + t``, holds
    output token t, and predicts output token t + 1. Each is a place where a round of decoding starts.

    Attributes:
        trace: The trace.
        token_ids: int64 ``[n]``, the scored rows' tokens, on the model's device.
        hidden: For each layer its output at the scored rows, ``[1, n, hidden]`` in the model's dtype.
        cache: The target's keys and values at every position before and at the scored rows.
        law: What the target would say after each scored row.
        processors: History-dependent logits processors, for the draft's logits too.
    """

    trace: Trace
    token_ids: Tensor
    hidden: tuple[Tensor, ...]
    cache: BlockCache
    law: TargetLaw
    processors: Processors

    @property
    def num_rows(self) -> int:
        """Number of scored rows."""
        return self.token_ids.shape[0]

    @property
    def num_bytes(self) -> int:
        """Memory held by keys, values, hidden states and laws."""
        held = (*self.hidden, self.law.ids, self.law.probs)
        return self.cache.num_bytes + sum(t.numel() * t.element_size() for t in held)

    def processed(self, logits: Tensor) -> Tensor:
        """Logits ``[n, vocab]`` after the processors, each row with its own past."""
        first = self.trace.output_ids[0]
        prefix = torch.tensor([*self.trace.prompt_ids, first], device=logits.device)
        return self.processors(logits, prefix[None], self.token_ids[1:])


def compute_states(
    target: Target,
    traces: Sequence[Trace],
    sampling: SamplingSettings,
    *,
    processors_for: ProcessorsFor | None = None,
) -> list[TraceState]:
    """Runs the target once over each trace, teacher-forced.

    It takes, for each trace, 2 x L x kv_heads x head_dim values per position (twice that at scored rows) and
    L x hidden values per scored row, in the model's dtype: for 2,000 rows behind as many prompt tokens 200 MB with
    a 135M model, 1.3 GB with an 8B model of grouped queries.

    Args:
        target: The model.
        traces: Plain traces; one that ended at its first token has a state without rows.
        sampling: How tokens are chosen.
        processors_for: Makes the logits processors for a prompt length; none by default.

    Returns:
        One state per trace, in order.

    Raises:
        NumericalError: The model's logits are not numbers.
    """
    made_for = processors_for or (lambda _: Processors())
    return [_compute(target, trace, sampling, made_for(len(trace.prompt_ids))) for trace in traces]


def _compute(target: Target, trace: Trace, sampling: SamplingSettings, processors: Processors) -> TraceState:
    ids = torch.tensor(trace.input_ids, device=target.device)
    start, rows = len(trace.prompt_ids), trace.num_scored
    cache = target.new_cache(capacity=len(ids))
    for first, chunk in chunks(ids[:start]):
        target.advance(chunk, cache, start=first, program=target.full)
    hidden, logits = _scored_pass(target, ids[start:], cache, start=start, wants_logits=not sampling.greedy)
    cache.length = len(ids)
    state = TraceState(
        trace=trace,
        token_ids=ids[start:],
        hidden=hidden,
        cache=BlockCache(cache, num_layers=target.num_layers, num_rows=rows),
        law=TargetLaw.greedy(torch.tensor(trace.output_ids[1:], dtype=torch.long, device=target.device)),
        processors=processors,
    )
    return state if logits is None else _with_law(state, logits, sampling)


def _scored_pass(
    target: Target, ids: Tensor, cache: KVCache, *, start: int, wants_logits: bool
) -> tuple[tuple[Tensor, ...], Tensor | None]:
    if not len(ids):
        return (), None
    program, outs = watching(target, range(target.num_layers))
    logits = None
    if wants_logits:
        logits = target.logits(ids, cache, start=start, program=program)
    else:
        target.advance(ids, cache, start=start, program=program)
    return tuple(hidden_of(out) for out in outs), logits


def _with_law(state: TraceState, logits: Tensor, sampling: SamplingSettings) -> TraceState:
    law = TargetLaw.sampled(state.processed(logits), sampling, warpers=state.processors.warpers)
    return replace(state, law=law)


def chunks(token_ids: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Positions in pieces of at most ``CHUNK``, each with its start."""
    for start in range(0, token_ids.shape[0], CHUNK):
        yield start, token_ids[start : start + CHUNK]


def watching(target: Target, layers: Sequence[int]) -> tuple[LayerProgram, list[HandOut]]:
    """The full program with the outputs of some layers (from 0) kept after each pass."""
    modules = list(target.full.modules)
    outs = [HandOut(modules[index], target.programs.output_length) for index in layers]
    for index, out in zip(layers, outs, strict=True):
        modules[index] = out
    return LayerProgram(tuple(modules)), outs


def hidden_of(out: HandOut) -> Tensor:
    """What the stub kept of the last pass, ``[1, n, hidden]``."""
    assert out.hidden is not None, "the layer did not run"
    return out.hidden
