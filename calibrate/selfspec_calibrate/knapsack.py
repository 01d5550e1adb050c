"""Skip sets by a knapsack over measured latencies, as starting points of the search (KnapSpec, 2602.20217).

Leaving an attention or an MLP out saves what it was measured to take, in whole units, and attention takes longer the
longer the text. A dynamic programme over hidden states finds for every number of units the set whose last hidden
state stays nearest to the full model's. All numbers are solved in one pass per text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from selfspec_calibrate.skip_ranking import SAVED_SHARES
from selfspec_calibrate.trace_state import chunks
from selfspec_runtime.cache import KVCache
from selfspec_runtime.skip_programme import SkipProgramme, sub_layers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from selfspec_calibrate.cost_model import CostModel
    from selfspec_calibrate.trace import Trace
    from selfspec_runtime.layer_skip import LayerSkipSet
    from selfspec_runtime.skip_programme import SkipFront
    from selfspec_runtime.target import Target

#: Largest number of units of one sub-layer: how much dearer than the other it may count.
MAX_UNITS = 5

#: Hidden states that resemble the full model's less are given up, and most of the time that may be saved (the paper).
LEAST_COSINE, MOST_SAVED = 0.5, 0.5

#: Tokens per text whose hidden states are compared, and texts.
NUM_TOKENS, NUM_TEXTS = 4, 3

#: Passes over all rows that the programme's variants of each layer amount to.
VARIANTS = 2.0


@dataclass(frozen=True)
class LatencyUnits:
    """What sub-layers take, in whole units.

    Attributes:
        attention: Units of an attention, 1 to `MAX_UNITS`.
        mlp: Units of an MLP; one of the two is 1.
    """

    attention: int
    mlp: int

    @classmethod
    def of(cls, attention_s: float, mlp_s: float) -> LatencyUnits:
        """The rounded ratio of two measured times; equal where either was too short to be measured."""
        if min(attention_s, mlp_s) <= 0.0:
            return cls(1, 1)
        longer = min(round(max(attention_s, mlp_s) / min(attention_s, mlp_s)), MAX_UNITS)
        return cls(longer, 1) if attention_s > mlp_s else cls(1, longer)

    def saved(self, skip: LayerSkipSet) -> int:
        """Units that a set saves."""
        return self.attention * len(skip.attention) + self.mlp * len(skip.mlp)


def knapsack_front(
    target: Target, trace: Trace, units: LatencyUnits, *, num_tokens: int = NUM_TOKENS
) -> SkipFront | None:
    """The best set for every number of units saved, on one text.

    Args:
        target: The model.
        trace: The text; hidden states are compared at evenly spread generated tokens.
        units: What sub-layers take.
        num_tokens: Tokens at which they are compared, at most.

    Returns:
        The front; None for a text without scored tokens.

    Raises:
        PlanError: The family cannot be solved in one pass, or has no attention or MLP module of its own.
    """
    rows = min(num_tokens, trace.num_scored)
    if rows == 0:
        return None
    programme = SkipProgramme(
        target,
        most_saved(target.num_layers, units),
        sub_layers(units.attention, units.mlp),
        kept_layers=frozenset({0, target.num_layers - 1}),
        least_cosine=LEAST_COSINE,
    )
    ids = torch.tensor(trace.input_ids, device=target.device)
    # Scratch rows are no positions of the text, which may fill the model's context.
    cache = KVCache(target.num_layers, capacity=len(ids) + rows * programme.num_rows)
    for first, chunk in chunks(ids):
        target.advance(chunk, cache, start=first, program=target.full)
    cache.length = len(ids)
    positions = torch.linspace(len(trace.prompt_ids), len(ids) - 1, rows, device=target.device).long()
    return programme.solve(ids[positions], cache, positions=positions)


def knapsack_seeds(
    target: Target, traces: Sequence[Trace], cost: CostModel, *, max_seconds: float
) -> tuple[LayerSkipSet, ...]:
    """Sets that save some shares of the time, each the best one on one of the first texts of each kind.

    Args:
        target: The model.
        traces: Plain traces.
        cost: Seconds of passes and sub-layers, at the length of each text.
        max_seconds: Time to keep within, as the cost model predicts it; a text that would take longer is left out.

    Returns:
        All different, none empty; none at all for families that cannot be solved in one pass.
    """
    if not target.takes_trees or None in (target.parts.attention_name, target.parts.mlp_name):
        return ()
    found: dict[LayerSkipSet, None] = {}
    for trace in _texts(traces):
        context = len(trace.input_ids)
        units = LatencyUnits.of(cost.attention_s(context), cost.mlp_s(context))
        rows = NUM_TOKENS * (most_saved(target.num_layers, units) + 1)
        max_seconds -= VARIANTS * cost.pass_s(rows, context) + cost.pass_s(context, 0)
        front = knapsack_front(target, trace, units) if max_seconds >= 0.0 else None
        if front is not None:
            found |= dict.fromkeys(_chosen(front, target.num_layers * (units.attention + units.mlp)))
    return tuple(found)


def most_saved(num_layers: int, units: LatencyUnits) -> int:
    """Most units that a set of the front saves."""
    return int(MOST_SAVED * num_layers * (units.attention + units.mlp))


def _chosen(front: SkipFront, total_units: int) -> Iterator[LayerSkipSet]:
    """The sets at the wanted shares; where none saves exactly so much, the next smaller one."""
    for share in SAVED_SHARES:
        most = min(round(share * total_units), len(front.skips) - 1)
        yield from [skip for skip in front.skips[most:0:-1] if skip is not None][:1]


def _texts(traces: Sequence[Trace]) -> list[Trace]:
    """The first texts of different kinds, then further ones."""
    usable = [trace for trace in traces if trace.num_scored]
    first = {trace.kind: trace for trace in reversed(usable)}
    others = [trace for trace in usable if trace is not first[trace.kind]]
    ordered = [trace for trace in usable if trace is first[trace.kind]] + others
    return ordered[:NUM_TEXTS]
