"""A copy of the model's own weights in four bits as the draft (ML-SpecQD, 2503.13565, without a second cache).

The copy attends to the target's keys and values for everything committed, which raises its agreement by
several points over a draft model with a cache of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from selfspec_runtime.draft_head import chosen_head, describe_head, rank_names
from selfspec_runtime.drafts.passes import PassSource
from selfspec_runtime.drafts.source import SourceSpec
from selfspec_runtime.layer_skip import LayerSkipSet

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from selfspec_runtime.target import Target


class QuantizedSpec(SourceSpec):
    """Plan entry for a quantised copy of the model's own weights.

    Attributes:
        format: Number format of the copy; ``nf4`` is bitsandbytes' 4-bit NormalFloat.
        quantize_head: Whether the head is quantised too.
        skip: Sub-layers left out on top.
        vocab_size: Tokens that the draft can say, the most frequent ones, or None for all.
    """

    kind: Literal["quantized"] = "quantized"
    format: Literal["nf4"] = "nf4"
    quantize_head: bool = False
    skip: LayerSkipSet = LayerSkipSet()
    vocab_size: int | None = Field(default=None, ge=1)

    def build(self, target: Target, arrays: Mapping[str, Tensor]) -> PassSource:
        """Makes the source; the copy is made, and packed, once per target."""
        layers = target.quantized_layers
        head, head_bytes = self._head(target, arrays)
        program = target.programs.without(self.skip, layers=layers.modules, head=head)
        return PassSource(target, program, origin="quantized", extra_bytes=layers.num_bytes + head_bytes)

    def validate_for(self, num_layers: int) -> None:
        """Checks the skip set's indices."""
        self.skip.validate_for(num_layers)

    def describe(self) -> str:
        """For example ``NF4 copy of layers and head, skip M12, 4,096 tokens``."""
        head = " and head" if self.quantize_head else ""
        skip = f", {self.skip.describe()}" if len(self.skip) else ""
        return f"NF4 copy of layers{head}{skip}{describe_head(self.vocab_size)}"

    def array_names(self) -> tuple[str, ...]:
        """The tokens' ranks, for a reduced head."""
        return rank_names(self.vocab_size)

    def _head(self, target: Target, arrays: Mapping[str, Tensor]) -> tuple[nn.Module | None, int]:
        """The draft's head, None for the model's own, and the bytes that it holds."""
        reduced = chosen_head(target, arrays, self.vocab_size, quantize=self.quantize_head)
        if reduced is not None:
            return reduced, reduced.num_bytes
        if not self.quantize_head:
            return None, 0
        return target.quantized_head.modules[0], target.quantized_head.num_bytes
