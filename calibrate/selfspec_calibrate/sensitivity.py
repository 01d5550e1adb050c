"""How much a draft loses by each single sub-layer left out."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Literal

from selfspec_calibrate.scoring import Scorer
from selfspec_runtime.drafts.skipped import LayerSkipSpec
from selfspec_runtime.layer_skip import LayerSkipSet

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from selfspec_calibrate.trace_state import TraceState
    from selfspec_runtime.sampling import SamplingSettings
    from selfspec_runtime.target import Target

Role = Literal["attention", "mlp"]


@dataclass(frozen=True)
class Sensitivity:
    """Agreement with each single sub-layer left out; 0 where the family has no such module of its own.

    Attributes:
        attention: For each layer the agreement without its attention, 0..1.
        mlp: For each layer the agreement without its MLP.
    """

    attention: tuple[float, ...]
    mlp: tuple[float, ...]


def measure_sensitivity(
    target: Target,
    states: Sequence[TraceState],
    sampling: SamplingSettings,
    *,
    max_rows: int,
    max_seconds: float | None = None,
    on_progress: Callable[[int], None] = lambda done: None,
    clock: Callable[[], float] = perf_counter,
) -> Sensitivity:
    """Scores every skip set of one sub-layer.

    Args:
        target: The model.
        states: Its states along the traces.
        sampling: How tokens are chosen.
        max_rows: Rows to score on: whole traces, until they hold this many.
        max_seconds: Time to keep within, by a first timing; at least one trace is scored on all the same.
        on_progress: Told how many sub-layers are done.
        clock: Seconds since some moment.
    """
    if max_seconds is not None:
        max_rows = min(max_rows, _rows_within(max_seconds, target, states, sampling, clock))
    scorer = Scorer(target, affordable(states, max_rows=max_rows), sampling, {})
    names = {"attention": target.parts.attention_name, "mlp": target.parts.mlp_name}
    found: dict[str, list[float]] = {"attention": [], "mlp": []}
    for role, name in names.items():
        for layer in range(target.num_layers):
            spec = LayerSkipSpec(skip=LayerSkipSet.model_validate({role: [layer]}))
            found[role].append(0.0 if name is None else scorer.agreement(spec))
            on_progress(sum(map(len, found.values())))
    return Sensitivity(tuple(found["attention"]), tuple(found["mlp"]))


def _rows_within(
    max_seconds: float,
    target: Target,
    states: Sequence[TraceState],
    sampling: SamplingSettings,
    clock: Callable[[], float],
) -> int:
    """Rows for which all passes together take so long: half of the layers each, as layers before are not run."""
    scorer = Scorer(target, affordable(states, max_rows=1), sampling, {})
    started = clock()
    scorer.scores(LayerSkipSpec(skip=LayerSkipSet(attention=frozenset({target.num_layers // 2}))))
    row_s = (clock() - started) / max(scorer.num_rows, 1)
    return max(int(max_seconds / (2 * target.num_layers * row_s)), 1) if row_s > 0 else sys.maxsize


def affordable(states: Sequence[TraceState], *, max_rows: int) -> list[TraceState]:
    """States from the first on until they hold ``max_rows`` rows; one kind after the other, so that all take part."""
    rank: dict[str, int] = {}
    order = []
    for index, state in enumerate(states):
        kind = state.trace.kind
        rank[kind] = rank.get(kind, -1) + 1
        order.append((rank[kind], index))
    chosen: list[TraceState] = []
    for _, index in sorted(order):
        if sum(state.num_rows for state in chosen) >= max_rows:
            break
        chosen.append(states[index])
    return chosen
