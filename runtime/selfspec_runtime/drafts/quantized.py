"""A copy of the model's own weights in four bits as the draft (ML-SpecQD, 2503.13565, without a second cache).

The copy attends to the target's keys and values for everything committed, which raises its agreement by
several points over a draft model with a cache of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from selfspec_runtime.drafts.passes import PassSource
from selfspec_runtime.drafts.source import SourceSpec
from selfspec_runtime.layer_skip import LayerSkipSet

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from selfspec_runtime.target import Target


class QuantizedSpec(SourceSpec):
    """Plan entry for a quantised copy of the model's own weights.

    Attributes:
        format: Number format of the copy; ``nf4`` is bitsandbytes' 4-bit NormalFloat.
        quantize_head: Whether the head is quantised too.
        skip: Sub-layers left out on top.
    """

    kind: Literal["quantized"] = "quantized"
    format: Literal["nf4"] = "nf4"
    quantize_head: bool = False
    skip: LayerSkipSet = LayerSkipSet()

    def build(self, target: Target, arrays: Mapping[str, Tensor]) -> PassSource:
        """Makes the source; the copy is made once per target."""
        del arrays
        layers = target.quantized_layers
        head = target.quantized_head if self.quantize_head else None
        program = target.programs.without(
            self.skip, layers=layers.modules, head=head.modules[0] if head is not None else None
        )
        held = layers.num_bytes + (head.num_bytes if head is not None else 0)
        return PassSource(target, program, origin="quantized", extra_bytes=held)

    def validate_for(self, num_layers: int) -> None:
        """Checks the skip set's indices."""
        self.skip.validate_for(num_layers)

    def describe(self) -> str:
        """For example ``NF4 copy, skip M12``."""
        head = " and head" if self.quantize_head else ""
        skip = f", {self.skip.describe()}" if len(self.skip) else ""
        return f"NF4 copy of layers{head}{skip}"
