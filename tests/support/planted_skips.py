"""Skip-set problems whose optimum is known: sub-layers interact with their neighbours, and only with them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np

from selfspec_calibrate.skip_ranking import positions_of, skip_set_of
from selfspec_runtime.layer_skip import LayerSkipSet


@dataclass(frozen=True)
class PlantedSkips:
    """Agreement is ``exp(-loss)``: a loss for each sub-layer left out, and one for each two neighbours left out.

    Neighbours are sub-layers next to each other, and next but one, in the order of execution.
    """

    num_layers: int
    seed: int

    @cached_property
    def single(self) -> np.ndarray:
        """Losses ``[2L]``: most sub-layers are nearly free, the rest dear, the ends dearest."""
        draw = np.random.default_rng(self.seed)
        count = 2 * self.num_layers
        free = draw.random(count) < 0.65
        losses = np.where(free, draw.uniform(0.0001, 0.003, count), draw.uniform(0.02, 0.2, count))
        losses[[0, 1, -2, -1]] = draw.uniform(0.3, 1.0, 4)
        return losses

    @cached_property
    def pair(self) -> np.ndarray:
        """Losses ``[2L, 2]`` of leaving out a sub-layer together with the one 1 and 2 places before it."""
        draw = np.random.default_rng(self.seed + 1000)
        shape = (2 * self.num_layers, 2)
        return np.where(draw.random(shape) < 0.3, draw.uniform(0.02, 0.1, shape), draw.uniform(0.0, 0.003, shape))

    @property
    def sensitivity(self) -> Any:
        agreements = np.exp(-self.single)
        return SimpleNamespace(attention=tuple(agreements[0::2].tolist()), mlp=tuple(agreements[1::2].tolist()))

    def agreement(self, skip: LayerSkipSet) -> float:
        out = positions_of(skip)
        loss = sum(float(self.single[p]) for p in out)
        loss += sum(float(self.pair[p, d - 1]) for p in out for d in (1, 2) if p - d in out)
        return math.exp(-loss)

    @cached_property
    def best_by_size(self) -> dict[tuple[int, int], LayerSkipSet]:
        """For each number of attentions and MLPs the set of highest agreement, by dynamic programming."""
        # State: whether the last two sub-layers are left out, and the counts so far.
        best: dict[tuple[bool, bool, int, int], tuple[float, tuple[int, ...]]] = {(False, False, 0, 0): (0.0, ())}
        for position in range(2 * self.num_layers):
            grown: dict[tuple[bool, bool, int, int], tuple[float, tuple[int, ...]]] = {}
            for (two, one, attentions, mlps), (loss, out) in best.items():
                more = loss + self.single[position] + one * self.pair[position, 0] + two * self.pair[position, 1]
                is_mlp = position % 2
                for state, value in (
                    ((one, False, attentions, mlps), (loss, out)),
                    ((one, True, attentions + 1 - is_mlp, mlps + is_mlp), (more, (*out, position))),
                ):
                    if state not in grown or value[0] < grown[state][0]:
                        grown[state] = value
            best = grown
        found: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {}
        for (_, _, attentions, mlps), value in best.items():
            if (attentions, mlps) not in found or value[0] < found[attentions, mlps][0]:
                found[attentions, mlps] = value
        return {counts: skip_set_of(out) for counts, (_, out) in found.items()}
