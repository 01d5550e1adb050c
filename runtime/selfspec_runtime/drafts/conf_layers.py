"""ConfLayers: layers left out because their outputs are unsure, tried while decoding (2604.14612).

A candidate drafts for a stretch of rounds, and is judged by the tokens that it brought for what it cost, against the
stretch just before it, in which the best set drafted. It stays only if it did better; else the best set is back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from selfspec_runtime.drafts.dynamic_skips import (
    DynamicSkipSource,
    DynamicSkipSpec,
    Step,
    require_layers,
    spread_layers,
)
from selfspec_runtime.drafts.layer_confidence import ConfidenceReader, num_left_out, unsure_layers
from selfspec_runtime.layer_skip import LayerSkipSet
from selfspec_runtime.scratch import has_room

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from selfspec_runtime.drafts.draft import Draft
    from selfspec_runtime.drafts.source import RoundContext
    from selfspec_runtime.target import Target


@dataclass(frozen=True)
class Stretch:
    """What rounds with one set brought.

    Attributes:
        num_rounds: Rounds that it drafted.
        num_passes: Draft passes.
        num_drafted: Draft tokens.
        num_accepted: Accepted ones.
    """

    num_rounds: int = 0
    num_passes: int = 0
    num_drafted: int = 0
    num_accepted: int = 0

    def with_round(self, draft: Draft, num_accepted: int) -> Stretch:
        """The stretch and one round more."""
        return Stretch(
            self.num_rounds + 1,
            self.num_passes + draft.num_passes,
            self.num_drafted + len(draft),
            self.num_accepted + num_accepted,
        )

    def speed(self, draft_cost: float) -> float:
        """Tokens per plain step's worth of work; a draft pass costs ``draft_cost``, a verification 1."""
        cost = self.num_rounds + self.num_passes * draft_cost
        return (self.num_accepted + self.num_rounds) / cost if cost else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted tokens, 0 before any was drafted."""
        return self.num_accepted / self.num_drafted if self.num_drafted else 0.0

    @property
    def accepts_little(self) -> bool:
        """Whether not even one token a round was accepted."""
        return self.num_accepted < self.num_rounds


class ConfLayersSource(DynamicSkipSource):
    """Drafts with the best set so far, or with a candidate on trial.

    Args:
        target: The model.
        spec: The plan entry.

    Attributes:
        best: The best set so far.
        on_trial: Whether a candidate drafts now.
    """

    def __init__(self, target: Target, spec: ConfLayersSpec) -> None:
        start = spec.first_skip(target.num_layers)
        super().__init__(target, start, origin=spec.kind, budget=spec.budget(), interval=spec.interval)
        self._spec = spec
        self._reader: ConfidenceReader | None = None
        self._stretch = Stretch()
        self.best, self.best_speed, self.on_trial = start, 0.0, False

    def _due(self, context: RoundContext) -> Step | None:
        rows = min(self._spec.window, context.cache.length)
        if self.on_trial or self._is_done() or not rows or not has_room(context.cache, rows):
            return None
        return Step(self.target.num_layers, rows) if self._stretch.num_rounds >= self.interval else None

    def _step(self, context: RoundContext) -> None:
        candidate = self._candidate(context)
        if candidate is None or candidate == self.best:
            self._stretch = Stretch()
            return
        speed = self._speed()
        self._use(candidate)
        self.best_speed, self.on_trial, self._stretch = speed, True, Stretch()

    def _candidate(self, context: RoundContext) -> LayerSkipSet | None:
        """Layers that are unsure on the latest tokens, each of which sees what stood before it."""
        self._reader = self._reader or ConfidenceReader(self.target)
        rows = min(self._spec.window, context.cache.length)
        start = context.cache.length - rows
        ids = context.sequence.tensor()[start : context.cache.length]
        confidences = self._reader.read(ids, context.cache, start=start)
        layers = unsure_layers(confidences, skip_ratio=self._spec.skip_ratio)
        return LayerSkipSet.whole(layers) if layers else None

    def _learn(self, draft: Draft, num_accepted: int) -> None:
        self._stretch = self._stretch.with_round(draft, num_accepted)
        if not self.on_trial:
            return
        rounds = self._stretch.num_rounds
        if rounds >= self.interval:
            self._judge(self._speed() > self.best_speed)
        elif 2 * rounds >= self.interval and self._stretch.accepts_little:
            self._judge(False)

    def _judge(self, is_better: bool) -> None:
        best = self.skip if is_better else self.best
        stretch = self._stretch if is_better else Stretch()
        self._use(best)
        self.best, self.on_trial, self._stretch = best, False, stretch

    def _is_done(self) -> bool:
        """Steps spent, or the best set good enough over its latest stretch."""
        good = self._stretch.num_rounds >= self.interval and self._stretch.acceptance_rate >= self._spec.max_score
        return good or self.overhead.num_steps >= self._spec.max_steps

    def _speed(self) -> float:
        return self._stretch.speed(self.kept_layers(self.skip) / self.target.num_layers)

    def _forget(self) -> None:
        self.best, self.best_speed, self.on_trial = self._start, 0.0, False
        self._stretch = Stretch()


class ConfLayersSpec(DynamicSkipSpec):
    """Plan entry for layers left out because they are unsure.

    Attributes:
        skip_ratio: Share of the inner layers to leave out, at least.
        window: Latest tokens that confidences are read on.
        interval: Rounds that a candidate, and the best set before it, draft for.
        max_steps: Candidates after which the search ends.
        max_score: Acceptance rate at which it ends.
    """

    kind: Literal["conf_layers"] = "conf_layers"
    skip_ratio: float = Field(default=0.4, gt=0.0, lt=1.0)
    window: int = Field(default=24, ge=1, le=512)
    interval: int = Field(default=30, ge=2, le=4096)
    max_steps: int = Field(default=100, ge=1, le=100_000)
    max_score: float = Field(default=0.95, gt=0.0, le=1.0)

    def build(self, target: Target, arrays: Mapping[str, Tensor]) -> ConfLayersSource:
        """Makes the source."""
        del arrays
        self.validate_for(target.num_layers)
        return ConfLayersSource(target, self)

    def first_skip(self, num_layers: int) -> LayerSkipSet:
        """Evenly spread layers, the wanted share."""
        return LayerSkipSet.whole(spread_layers(num_layers, num_left_out(num_layers, self.skip_ratio)))

    def validate_for(self, num_layers: int) -> None:
        """Checks that a layer is left."""
        require_layers(num_left_out(num_layers, self.skip_ratio), num_layers)

    def describe(self) -> str:
        """For example ``skip 40% of the layers, the unsure ones``."""
        return f"skip {self.skip_ratio:.0%} of the layers, the unsure ones"
