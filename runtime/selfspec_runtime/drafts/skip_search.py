"""The search of SWIFT (Xia et al. 2410.06916) for a better skip set of the same size, apart from any model.

Candidates are compared on the same tokens only: a window is taken, the set in use is scored on it, then candidates
are. A candidate that does strictly better is taken into use; on the next window its predecessor is scored again, so
that luck does not last. Random steps exchange a few units; Bayesian steps exchange those that a linear model of the
differences, drawn from its posterior (Thompson 1933), finds best.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import comb
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Units = frozenset[int]

#: Prior deviation of what a unit adds to the agreement, and deviation of a difference between two scores.
PRIOR_DEVIATION, NOISE_DEVIATION = 0.1, 0.05

#: Units exchanged at most in one step, and draws until a random step finds a set that is new on this window.
MAX_EXCHANGED, MAX_DRAWS = 3, 20


@dataclass(frozen=True)
class Difference:
    """Two sets scored on the same tokens.

    Attributes:
        change: For each unit +1 if only the candidate leaves it out, -1 if only the set in use does, else 0.
        gain: The candidate's score less the other's.
    """

    change: NDArray[np.float64]
    gain: float


@dataclass
class SkipSearch:
    """Proposes sets, hears their scores, and knows which one to use.

    Attributes:
        num_units: Units that may be left out: sub-layers, or whole layers where a family has no other.
        start: Units left out at first; every set has as many.
        max_score: Score at which the search ends: good enough.
        max_steps: Scores after which it ends.
        per_window: Candidates compared on one window.
        bayes_every: Every so many candidates one is proposed by the model, the others at random.
        seed: Of the random choices.
        best: Units left out by the set in use.
        num_steps: Scores heard.
    """

    num_units: int
    start: Units
    max_score: float = 0.95
    max_steps: int = 200
    per_window: int = 6
    bayes_every: int = 2
    seed: int = 0
    best: Units = field(init=False)
    num_steps: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        """Starts with nothing heard."""
        self.reset()

    def reset(self) -> None:
        """Forgets all scores."""
        self.best, self.num_steps = self.start, 0
        self._scores: dict[Units, float] = {}
        self._differences: list[Difference] = []
        self._predecessor: Units | None = None

    @property
    def is_done(self) -> bool:
        """Whether the set in use is good enough, the steps are spent, or there is nothing to exchange."""
        good = self._scores.get(self.best, 0.0) >= self.max_score
        return good or self.num_steps >= self.max_steps or len(self.start) in (0, self.num_units)

    @property
    def wants_window(self) -> bool:
        """Whether the next set is to be scored on new tokens."""
        others = comb(self.num_units, len(self.start)) - 1
        return not self._scores or len(self._scores) > min(self.per_window, others)

    def next_set(self) -> Units:
        """The set to score next; the same until a score is heard. On a new window that is the set in use."""
        if self.wants_window or self.best not in self._scores:
            return self.best
        if self._predecessor is not None and self._predecessor not in self._scores:
            return self._predecessor
        random = np.random.default_rng((self.seed, self.num_steps))
        by_model = self._differences and self.num_steps % self.bayes_every == 0
        proposed = self._by_model(random) if by_model else self.best
        for _ in range(MAX_DRAWS):
            if proposed not in self._scores:
                break
            proposed = self._exchanged(random)
        return proposed

    def hear(self, units: Units, score: float) -> None:
        """Takes the score of :meth:`next_set` in."""
        scores = {} if self.wants_window else dict(self._scores)
        scores[units] = score
        before, best, predecessor = scores.get(self.best), self.best, self._predecessor
        if before is not None and units != best:
            self._differences.append(Difference(self._indicators(units) - self._indicators(best), score - before))
            if score > before:
                best, predecessor = units, best
        self._scores, self.best, self._predecessor = scores, best, predecessor
        self.num_steps += 1

    def _exchanged(self, random: np.random.Generator) -> Units:
        inside, outside = sorted(self.best), sorted(set(range(self.num_units)) - self.best)
        count = int(random.integers(1, min(MAX_EXCHANGED, len(inside), len(outside)) + 1))
        return self.best - set(_some(inside, count, random)) | set(_some(outside, count, random))

    def _by_model(self, random: np.random.Generator) -> Units:
        """Exchanges the worst units for the best ones of a draw, as long as that gains."""
        gains = self._drawn(random)
        inside = sorted(self.best, key=lambda unit: gains[unit])
        outside = sorted(set(range(self.num_units)) - self.best, key=lambda unit: -gains[unit])
        pairs = list(zip(inside, outside, strict=False))[:MAX_EXCHANGED]
        changed = [(old, new) for old, new in pairs if gains[new] > gains[old]]
        return self.best - {old for old, _ in changed} | {new for _, new in changed}

    def _drawn(self, random: np.random.Generator) -> NDArray[np.float64]:
        """A draw of what each unit adds: from the prior, corrected by what was heard (Matheron's rule)."""
        changes = np.array([difference.change for difference in self._differences])
        gains = np.array([difference.gain for difference in self._differences])
        drawn = PRIOR_DEVIATION * random.standard_normal(self.num_units)
        noise = NOISE_DEVIATION * random.standard_normal(len(gains))
        covariance = PRIOR_DEVIATION**2 * changes @ changes.T + NOISE_DEVIATION**2 * np.eye(len(gains))
        weights = np.linalg.solve(covariance, gains - changes @ drawn - noise)
        corrected: NDArray[np.float64] = drawn + PRIOR_DEVIATION**2 * changes.T @ weights
        return corrected

    def _indicators(self, units: Units) -> NDArray[np.float64]:
        vector = np.zeros(self.num_units)
        vector[sorted(units)] = 1.0
        return vector


def _some(units: Sequence[int], count: int, random: np.random.Generator) -> list[int]:
    return [units[index] for index in random.choice(len(units), size=count, replace=False)]
