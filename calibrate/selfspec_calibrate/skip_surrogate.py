"""Learns from scored skip sets which sub-layers hurt together, and proposes the next set to score.

The loss (negative log agreement) of a set is modelled as a sum over its sub-layers and over its pairs, with a Gaussian
prior: single losses as measured, pairs near zero, the less certainly so the closer they lie. The posterior follows
in closed form. Each proposal is the best set under one draw from it (Thompson sampling), so that sets are tried both
because they look good and because little is known of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from selfspec_calibrate.skip_ranking import positions_of, skip_set_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from selfspec_calibrate.skip_ranking import SkipRanking
    from selfspec_runtime.layer_skip import LayerSkipSet

    Floats = NDArray[np.float64]

#: Prior deviation of a single loss, relative to what was measured.
SINGLE_DEVIATION = 0.2

#: Deviation of an observed loss from the model, relative to it and at least: large losses do not add up.
NOISE, LEAST_NOISE = 0.05, 1e-3

#: Draws and steps that a proposal may take.
MAX_DRAWS, MAX_STEPS = 6, 60


@dataclass(frozen=True)
class DraftShares:
    """Times as shares of a plain step, host work included.

    Attributes:
        full: A draft pass that leaves nothing out.
        attention: What leaving one attention out saves.
        mlp: What leaving one MLP out saves.
        verify: A round's verification and host work.
    """

    full: float
    attention: float
    mlp: float
    verify: float


class _Draw(NamedTuple):
    """Losses drawn from the posterior, over candidates."""

    single: Floats
    pair: Floats


class SkipSurrogate:
    """Proposes skip sets.

    Args:
        ranking: The candidates and their single losses.
        shares: What drafting costs.
        max_skipped: Most sub-layers to leave out.
        max_draft_tokens: Longest draft.
    """

    def __init__(self, ranking: SkipRanking, shares: DraftShares, *, max_skipped: int, max_draft_tokens: int) -> None:
        self._places = np.array(ranking.candidates)
        self._losses = np.array([ranking.losses[place] for place in ranking.candidates])
        self._saved = np.where(self._places % 2 == 1, shares.mlp, shares.attention)
        self._shares = shares
        self._max_skipped = max_skipped
        self._drafts = np.arange(1, max_draft_tokens + 1)

    def propose(self, scored: Mapping[LayerSkipSet, float], seed: tuple[int, ...]) -> LayerSkipSet | None:
        """A set that was not scored yet.

        Args:
            scored: Loss (negative log agreement) of each set scored so far, at least one.
            seed: Of the draws; another one for each proposal.

        Returns:
            The set, or None if the draws led to nothing new.
        """
        random = np.random.default_rng(seed)
        sets = np.array([self._indicators(skip) for skip in scored])
        losses = np.array(list(scored.values()))
        known = {row.tobytes() for row in sets}
        values = self._values(losses, sets @ self._saved)
        for _ in range(MAX_DRAWS):
            draw = self._posterior(sets, losses, random)
            found = self._best(draw, sets[int(np.argmax(values))])
            if found.tobytes() not in known and found.any():
                return self._skip_set(found)
        return self._skip_set(self._stray(found, known, random))

    def _stray(self, found: Floats, known: set[bytes], random: np.random.Generator) -> Floats:
        """All draws agree on a known set: steps aside from it at random."""
        for _ in range(4 * len(found)):
            if found.tobytes() not in known and 0 < found.sum() <= self._max_skipped:
                return found
            place = random.integers(len(found))
            found = found.copy()
            found[place] = 1.0 - found[place]
        return np.zeros_like(found)

    def _posterior(self, sets: Floats, losses: Floats, random: np.random.Generator) -> _Draw:
        """Draws from the prior and corrects the draw by what was observed (Matheron's rule)."""
        first, second = self._pairs
        features = np.concatenate([sets, sets[:, first] * sets[:, second]], axis=1)
        mean, deviation = self._prior
        drawn = mean + deviation * random.standard_normal(len(mean))
        noise = NOISE * losses + LEAST_NOISE
        weighted = features * deviation**2
        gain = np.linalg.solve(
            weighted @ features.T + np.diag(noise**2),
            losses - features @ drawn - noise * random.standard_normal(len(losses)),
        )
        corrected = drawn + weighted.T @ gain
        count = len(self._places)
        pair = np.zeros((count, count))
        pair[first, second] = corrected[count:]
        return _Draw(corrected[:count], pair + pair.T)

    @cached_property
    def _pairs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        first, second = np.triu_indices(len(self._places), k=1)
        return first, second

    @cached_property
    def _prior(self) -> tuple[Floats, Floats]:
        """Means and deviations of single losses, then of pairs: of the order of a typical loss for neighbours."""
        first, second = self._pairs
        typical = float(self._losses.mean())
        distances = self._places[second] - self._places[first]
        mean = np.concatenate([self._losses, np.zeros(len(first))])
        single = SINGLE_DEVIATION * self._losses + 1e-4
        return mean, np.concatenate([single, typical / distances**2])

    def _best(self, draw: _Draw, start: Floats) -> Floats:
        """Climbs from a set by the best single change or exchange, until none helps."""
        here, value = start, self._values(self._loss(draw, start), start @ self._saved)
        for _ in range(MAX_STEPS):
            changes = self._changes(draw, here)
            best = int(np.argmax(changes.values))
            if changes.values[best] <= value + 1e-9:
                break
            value = changes.values[best]
            here = here.copy()
            for place in changes.places[best]:
                here[place] = 1.0 - here[place] if place >= 0 else here[place]
        return here

    def _changes(self, draw: _Draw, here: Floats) -> _Changes:
        """Every sub-layer put in or taken out, and every exchange of one for another."""
        loss, saved = self._loss(draw, here), here @ self._saved
        sign = 1.0 - 2.0 * here
        marginal = sign * (draw.single + draw.pair @ here)
        gained = sign * self._saved
        inside, outside = np.flatnonzero(here), np.flatnonzero(here == 0.0)
        pairs = draw.pair[np.ix_(inside, outside)]
        exchanged = marginal[inside][:, None] + marginal[outside][None, :] - pairs
        exchanged_s = gained[inside][:, None] + gained[outside][None, :]
        losses = loss + np.concatenate([marginal, exchanged.ravel()])
        values = self._values(losses, saved + np.concatenate([gained, exchanged_s.ravel()]))
        single = np.stack([np.arange(len(here)), np.full(len(here), -1)], axis=1)
        both = np.stack(np.meshgrid(inside, outside, indexing="ij"), axis=-1).reshape(-1, 2)
        sizes = here.sum() + np.concatenate([sign, np.zeros(len(both))])
        allowed = (sizes > 0) & (sizes <= self._max_skipped)
        return _Changes(np.concatenate([single, both]), np.where(allowed, values, -np.inf))

    def _loss(self, draw: _Draw, here: Floats) -> float:
        return float(draw.single @ here + 0.5 * here @ draw.pair @ here)

    def _values(self, losses: Floats | float, saved: Floats) -> Floats:
        """Speedups by the textbook law, at the best draft length for each."""
        acceptance = np.exp(-np.maximum(losses, 1e-6))[..., None]
        drafting = np.maximum(self._shares.full - saved, 0.0)[..., None] * self._drafts
        tokens = (1.0 - acceptance ** (self._drafts + 1)) / (1.0 - acceptance)
        best: Floats = (tokens / (drafting + self._shares.verify)).max(axis=-1)
        return best

    def _indicators(self, skip: LayerSkipSet) -> Floats:
        return np.isin(self._places, list(positions_of(skip))).astype(np.float64)

    def _skip_set(self, indicators: Floats) -> LayerSkipSet | None:
        return skip_set_of(self._places[indicators > 0].tolist()) if indicators.any() else None


class _Changes(NamedTuple):
    """Changes of a set: up to two candidates to flip each (-1 for none), and the value of the result."""

    places: NDArray[np.int64]
    values: Floats
