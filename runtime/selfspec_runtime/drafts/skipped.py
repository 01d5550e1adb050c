"""A draft that leaves attention and MLP sub-layers out (Zhang et al. 2309.08168)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from selfspec_runtime.draft_head import chosen_head, describe_head, rank_names
from selfspec_runtime.drafts.passes import PassSource
from selfspec_runtime.drafts.source import SourceSpec
from selfspec_runtime.layer_skip import LayerSkipSet

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from selfspec_runtime.target import Target


class LayerSkipSpec(SourceSpec):
    """Plan entry for a skip set.

    Attributes:
        skip: Sub-layers left out.
        vocab_size: Tokens that the draft can say, the most frequent ones, or None for all.
    """

    kind: Literal["layer_skip"] = "layer_skip"
    skip: LayerSkipSet
    vocab_size: int | None = Field(default=None, ge=1)

    def build(self, target: Target, arrays: Mapping[str, Tensor]) -> PassSource:
        """Makes the source."""
        head = chosen_head(target, arrays, self.vocab_size)
        held = 0 if head is None else head.num_bytes
        return PassSource(target, target.programs.without(self.skip, head=head), origin="layer_skip", extra_bytes=held)

    def validate_for(self, num_layers: int) -> None:
        """Checks that the indices exist."""
        self.skip.validate_for(num_layers)

    def describe(self) -> str:
        """For example ``skip A4,7-9 M12, 4,096 tokens``."""
        return self.skip.describe() + describe_head(self.vocab_size)

    def array_names(self) -> tuple[str, ...]:
        """The tokens' ranks, for a reduced head."""
        return rank_names(self.vocab_size)
