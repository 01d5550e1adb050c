"""CLaSp: whole layers to leave out, chosen anew by dynamic programming while decoding (Chen et al. 2505.24196).

The programme compares hidden states at the last committed token, from which the coming draft starts. The paper takes
them from the verification of the token before; here the programme's first branch computes them, so that no
verification has to keep hidden states for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from selfspec_runtime.drafts.dynamic_skips import (
    DynamicSkipSource,
    DynamicSkipSpec,
    Step,
    require_layers,
    spread_layers,
)
from selfspec_runtime.layer_skip import LayerSkipSet
from selfspec_runtime.scratch import has_room
from selfspec_runtime.skip_programme import SkipProgramme, whole_layers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from selfspec_runtime.drafts.source import RoundContext
    from selfspec_runtime.target import Target


class ClaspSource(DynamicSkipSource):
    """Drafts without the layers that the latest programme left out, evenly spread ones before the first.

    Args:
        target: The model.
        spec: The plan entry.
    """

    def __init__(self, target: Target, spec: ClaspSpec) -> None:
        start = spec.first_skip(target.num_layers)
        super().__init__(target, start, origin=spec.kind, budget=spec.budget(), interval=spec.interval)
        self._programme = SkipProgramme(target, spec.num_skipped, whole_layers())

    def _due(self, context: RoundContext) -> Step | None:
        rows = self._programme.num_rows
        return Step(self.target.num_layers, rows) if has_room(context.cache, rows) else None

    def _step(self, context: RoundContext) -> None:
        skip = self._chosen(context)
        if skip is not None:
            self._use(skip)

    def _chosen(self, context: RoundContext) -> LayerSkipSet | None:
        ids = context.sequence.tensor()
        last = ids.new_tensor([context.sequence.last_position])
        return self._programme.solve(ids[-1:], context.cache, positions=last).skips[-1]


class ClaspSpec(DynamicSkipSpec):
    """Plan entry for whole layers chosen anew while decoding.

    Attributes:
        num_skipped: Layers left out.
        interval: Rounds between two programmes, at least.
    """

    kind: Literal["clasp"] = "clasp"
    num_skipped: int = Field(ge=1, le=4096)
    interval: int = Field(default=64, ge=1, le=4096)

    def build(self, target: Target, arrays: Mapping[str, Tensor]) -> ClaspSource:
        """Makes the source."""
        del arrays
        self.validate_for(target.num_layers)
        return ClaspSource(target, self)

    def first_skip(self, num_layers: int) -> LayerSkipSet:
        """Evenly spread layers."""
        return LayerSkipSet.whole(spread_layers(num_layers, self.num_skipped))

    def validate_for(self, num_layers: int) -> None:
        """Checks that a layer is left."""
        require_layers(self.num_skipped, num_layers)

    def describe(self) -> str:
        """For example ``skip 8 layers, chosen every 64 rounds``."""
        layers = "1 layer" if self.num_skipped == 1 else f"{self.num_skipped} layers"
        return f"skip {layers}, chosen every {self.interval} rounds"
