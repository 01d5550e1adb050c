"""SWIFT: a skip set that is improved while decoding (Xia et al. 2410.06916).

Each step scores one set in one pass over the latest generated tokens, teacher-forced, against the target's own keys
and values, and keeps it if it does better there than the set in use. The paper confines drafts by their confidence,
which here is the controller's part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

import torch
from pydantic import Field, model_validator

from selfspec_runtime.drafts.agreement import agreement
from selfspec_runtime.drafts.dynamic_skips import DynamicSkipSource, DynamicSkipSpec, Step
from selfspec_runtime.drafts.skip_search import SkipSearch
from selfspec_runtime.layer_skip import LayerSkipSet
from selfspec_runtime.scratch import has_room, replayed_logits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from selfspec_runtime.drafts.skip_search import Units
    from selfspec_runtime.drafts.source import RoundContext
    from selfspec_runtime.target import Target


class SwiftSource(DynamicSkipSource):
    """Drafts with the best skip set found so far in this text.

    Args:
        target: The model.
        spec: The plan entry.
    """

    def __init__(self, target: Target, spec: SwiftSpec) -> None:
        super().__init__(target, spec.skip, origin=spec.kind, budget=spec.budget(), interval=spec.interval)
        self._units = skip_units(target, spec.skip)
        self._fixed = spec.skip.positions - frozenset().union(*self._units)
        self._window = spec.window
        self._window_start = 0
        self.search = SkipSearch(
            num_units=len(self._units),
            start=frozenset(n for n, unit in enumerate(self._units) if unit <= spec.skip.positions),
            max_score=spec.max_score,
            max_steps=spec.max_steps,
            seed=spec.seed,
        )

    def _due(self, context: RoundContext) -> Step | None:
        if self.search.is_done or not has_room(context.cache, self._window):
            return None
        if self.search.wants_window and len(context.sequence.new_ids) < self._window:
            return None
        return Step(self.kept_layers(self._skip_set(self.search.next_set())), self._window)

    def _step(self, context: RoundContext) -> None:
        units, start = self.search.next_set(), self._window_start
        if self.search.wants_window:
            start = context.sequence.last_position - self._window
        score = self._score(self._skip_set(units), context, start)
        self._window_start = start
        self.search.hear(units, score)
        self._use(self._skip_set(self.search.best))

    def _score(self, skip: LayerSkipSet, context: RoundContext, start: int) -> float:
        ids = context.sequence.tensor()[start : start + self._window]
        positions = torch.arange(start, start + self._window, device=ids.device)
        program = self.target.programs.without(skip)
        logits = replayed_logits(self.target, ids, context.cache, positions=positions, program=program)
        return agreement(context.rule, logits, context.sequence, start=start)

    def _skip_set(self, units: Units) -> LayerSkipSet:
        return LayerSkipSet.at(self._fixed.union(*(self._units[unit] for unit in units)))

    def _forget(self) -> None:
        self._window_start = 0
        self.search.reset()


class SwiftSpec(DynamicSkipSpec):
    """Plan entry for a skip set that is improved while decoding.

    Attributes:
        skip: The set to begin with, not empty; all later ones have its size.
        window: Tokens that sets are compared on.
        max_steps: Scores after which the search ends.
        max_score: Agreement at which it ends.
        seed: Of the random steps.
    """

    kind: Literal["swift"] = "swift"
    skip: LayerSkipSet
    window: int = Field(default=24, ge=4, le=512)
    max_steps: int = Field(default=200, ge=1, le=100_000)
    max_score: float = Field(default=0.95, gt=0.0, le=1.0)
    seed: int = Field(default=0, ge=0, lt=2**32)

    @model_validator(mode="after")
    def _something_to_exchange(self) -> Self:
        if not len(self.skip):
            message = "skip is empty, and every set of the search has its size: name at least one sub-layer"
            raise ValueError(message)
        return self

    def build(self, target: Target, arrays: Mapping[str, Tensor]) -> SwiftSource:
        """Makes the source."""
        del arrays
        self.validate_for(target.num_layers)
        return SwiftSource(target, self)

    def first_skip(self, num_layers: int) -> LayerSkipSet:
        """The start set."""
        del num_layers
        return self.skip

    def validate_for(self, num_layers: int) -> None:
        """Checks the start set's indices."""
        self.skip.validate_for(num_layers)

    def describe(self) -> str:
        """For example ``skip A4,7-9 M12, improved on 24 tokens``."""
        return f"{self.skip.describe()}, improved on {self.window} tokens"


def skip_units(target: Target, start: LayerSkipSet) -> Sequence[frozenset[int]]:
    """What may be exchanged: sub-layers of the inner layers and those of the start set, as places in their order.

    The first and the last layer feed what no other layer can make good. Where a family has no attention or no MLP
    module of its own, whole layers are exchanged.
    """
    inner = range(1, target.num_layers - 1)
    if None in (target.parts.attention_name, target.parts.mlp_name):
        whole = start.attention & start.mlp
        return [frozenset({2 * layer, 2 * layer + 1}) for layer in sorted({*inner, *whole})]
    places = {place for layer in inner for place in (2 * layer, 2 * layer + 1)}
    return [frozenset({place}) for place in sorted(places | start.positions)]
