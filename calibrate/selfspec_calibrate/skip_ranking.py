"""Ranks sub-layers by what leaving them out costs and saves, and turns a rank into a skip set.

Agreements of single sub-layers multiply approximately, so their negative logarithms add up: a loss to be traded for
seconds saved, as items of a knapsack are (2602.20217). Neighbours in the stack hurt more together than alone,
which the spread accounts for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from statistics import median
from typing import TYPE_CHECKING

from selfspec_runtime.layer_skip import LayerSkipSet

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from selfspec_calibrate.sensitivity import Sensitivity

#: Agreements are kept off 0 and 1, where a finite trace says nothing about the logarithm.
LOWEST, HIGHEST = 1e-3, 1.0 - 1e-4

#: Shares of all the time that leaving sub-layers out could save, for knapsacks (KnapSpec, 2602.20217).
SAVED_SHARES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)

#: A grid of attention weights and spreads; the plain rank first.
WEIGHTS, SPREADS = (1.0, 0.5, 2.0, 0.25, 4.0), (0.0, 0.5, 1.0, 2.0, 3.0)


def positions_of(skip: LayerSkipSet) -> frozenset[int]:
    """Places of a skip set's sub-layers in the order of execution."""
    return skip.positions


def skip_set_of(positions: Iterable[int]) -> LayerSkipSet:
    """The inverse of :func:`positions_of`."""
    return LayerSkipSet.at(positions)


@dataclass(frozen=True)
class SkipRanking:
    """What is known of single sub-layers.

    Attributes:
        sensitivity: Draft agreement without each attention and each MLP.
        attention_s: Seconds that leaving one attention out saves per pass; only the ratio to ``mlp_s`` matters.
        mlp_s: Seconds that leaving one MLP out saves.
    """

    sensitivity: Sensitivity
    attention_s: float
    mlp_s: float

    @cached_property
    def losses(self) -> dict[int, float]:
        """Negative log agreement by position; positions that the model cannot leave out are missing."""
        roles = (self.sensitivity.attention, self.sensitivity.mlp)
        found = {2 * layer + role: _loss(value) for role in (0, 1) for layer, value in enumerate(roles[role])}
        return dict(sorted(found.items()))

    @cached_property
    def candidates(self) -> tuple[int, ...]:
        """Positions that may be left out, in order.

        The first and the last layer feed what no other layer can make good. They count only where leaving them out
        is measured to be no worse than it is for the inner sub-layers of their kind.
        """
        last = max(position // 2 for position in self.losses)
        usual = [self._usual_loss(role, last) for role in (0, 1)]
        return tuple(p for p, loss in self.losses.items() if 0 < p // 2 < last or loss <= usual[p % 2])

    def _usual_loss(self, role: int, last: int) -> float:
        inner = [loss for p, loss in self.losses.items() if p % 2 == role and 0 < p // 2 < last]
        # A model of one or two layers has no inner ones to compare with.
        return median(inner) if inner else math.inf

    def saved_s(self, position: int) -> float:
        """Seconds saved per draft pass."""
        return self.mlp_s if position % 2 else self.attention_s

    def price(self, position: int, *, attention_weight: float = 1.0) -> float:
        """Loss per second saved; an attention's is multiplied by its weight."""
        weight = 1.0 if position % 2 else attention_weight
        return weight * self.losses[position] / max(self.saved_s(position), 1e-12)

    def ranked(self, budget: int, *, attention_weight: float = 1.0, spread: float = 0.0) -> LayerSkipSet:
        """Takes the cheapest sub-layers, one by one.

        Args:
            budget: Sub-layers to leave out.
            attention_weight: Factor on attentions' prices; above 1 keeps more of them.
            spread: How much dearer a sub-layer gets by each neighbour that is left out already, relative to its
                price: 0 for a plain rank.
        """
        return skip_set_of(self.order(attention_weight, spread, longest=budget))

    def order(self, attention_weight: float, spread: float, *, longest: int) -> tuple[int, ...]:
        """The first positions in the order in which :meth:`ranked` takes them."""
        prices = {position: self.price(position, attention_weight=attention_weight) for position in self.candidates}
        chosen: dict[int, None] = {}
        for _ in range(min(longest, len(prices))):
            free = [position for position in prices if position not in chosen]
            best = min(free, key=lambda position: prices[position] * (1 + spread * crowding(position, chosen)))
            chosen[best] = None
        return tuple(chosen)

    @cached_property
    def orders(self) -> dict[tuple[float, float], tuple[int, ...]]:
        """Whole orders on a grid of weights and spreads, to find the rank that is nearest to a given set."""
        everything = len(self.candidates)
        return {pair: self.order(*pair, longest=everything) for pair in product(WEIGHTS, SPREADS)}

    def knapsack(self, saved_s: float) -> LayerSkipSet:
        """The set of smallest summed loss among those that save at least so many seconds a pass.

        All attentions weigh the same and all MLPs do, so a set is best exactly if it holds the best of each kind,
        and the knapsack is solved by trying every pair of counts.
        """
        kinds = [sorted((p for p in self.candidates if p % 2 == kind), key=self.losses.__getitem__) for kind in (0, 1)]
        sums = [_running([self.losses[position] for position in kind]) for kind in kinds]
        best, lowest = (len(kinds[0]), len(kinds[1])), math.inf
        for attentions, loss in enumerate(sums[0]):
            missing = saved_s - attentions * self.attention_s
            mlps = max(math.ceil(missing / max(self.mlp_s, 1e-12) - 1e-9), 0)
            if mlps < len(sums[1]) and loss + sums[1][mlps] < lowest:
                best, lowest = (attentions, mlps), loss + sums[1][mlps]
        return skip_set_of([*kinds[0][: best[0]], *kinds[1][: best[1]]])

    @property
    def total_s(self) -> float:
        """Seconds saved per pass by leaving every candidate out."""
        return sum(self.saved_s(position) for position in self.candidates)


def crowding(position: int, chosen: Container[int]) -> float:
    """How close a sub-layer lies to chosen ones: 1 for each next to it, one half for each next but one."""
    next_to = (position - 1 in chosen) + (position + 1 in chosen)
    next_but_one = (position - 2 in chosen) + (position + 2 in chosen)
    return next_to + 0.5 * next_but_one


def _loss(agreement: float) -> float:
    return -math.log(min(max(agreement, LOWEST), HIGHEST))


def _running(losses: list[float]) -> list[float]:
    sums = [0.0]
    for loss in losses:
        sums.append(sums[-1] + loss)
    return sums
