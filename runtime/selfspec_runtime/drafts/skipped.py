"""A draft that leaves attention and MLP sub-layers out (Zhang et al. 2309.08168)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from selfspec_runtime.drafts.passes import PassSource
from selfspec_runtime.drafts.source import SourceSpec
from selfspec_runtime.layer_skip import LayerSkipSet

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from selfspec_runtime.target import Target


class LayerSkipSpec(SourceSpec):
    """Plan entry for a skip set."""

    kind: Literal["layer_skip"] = "layer_skip"
    skip: LayerSkipSet

    def build(self, target: Target, arrays: Mapping[str, Tensor]) -> PassSource:
        """Makes the source."""
        del arrays
        return PassSource(target, target.programs.without(self.skip), origin="layer_skip")

    def validate_for(self, num_layers: int) -> None:
        """Checks that the indices exist."""
        self.skip.validate_for(num_layers)

    def describe(self) -> str:
        """For example ``skip A4,7-9 M12``."""
        return self.skip.describe()
