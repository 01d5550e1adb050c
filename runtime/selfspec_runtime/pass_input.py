"""What goes into one pass: tokens, where they stand, what they see, and the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from selfspec_runtime.masks import block_mask
from selfspec_runtime.tree.tree_mask import tree_mask, tree_positions

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec_runtime.architecture import DecoderParts
    from selfspec_runtime.masks import Mask
    from selfspec_runtime.tree.token_tree import PlacedTree


class PassCache(Protocol):
    """What a pass asks of a cache; attention modules call its ``update`` besides."""

    def begin(self, start: int, num_tokens: int) -> None:
        """Announces a pass over positions ``start .. start + num_tokens - 1``."""


@dataclass(frozen=True)
class PassInput:
    """One pass.

    Attributes:
        token_ids: ``[n]`` int64, on the model's device.
        cache: The shared cache, or whatever stands in for one.
        start: Position of the first token; with a tree its slot. Nobody asks where mask and positions are given.
        mask: Another mask than the causal one.
        tree: The tree of whose rows these tokens are some, in the order of their slots; gives positions and mask.
        positions: Other positions than ``start, start + 1, ...``, int64 ``[n]``.
    """

    token_ids: Tensor
    cache: Any
    start: int
    mask: Mask | None = None
    tree: PlacedTree | None = None
    positions: Tensor | None = None

    @property
    def num_tokens(self) -> int:
        """Rows of the pass."""
        return self.token_ids.shape[0]

    @property
    def is_plain(self) -> bool:
        """Whether the tokens stand one after another and see all before them."""
        return self.mask is None and self.tree is None and self.positions is None

    def told_positions(self) -> Tensor:
        """Positions of the tokens, int64 ``[n]``."""
        device = self.token_ids.device
        if self.tree is not None:
            return tree_positions(self.tree, start=self.start, num_tokens=self.num_tokens, device=device)
        if self.positions is not None:
            return self.positions
        return torch.arange(self.start, self.start + self.num_tokens, device=device)

    def told_mask(self, parts: DecoderParts, dtype: torch.dtype) -> Mask:
        """The mask, as the family wants it."""
        device, start, num_tokens = self.token_ids.device, self.start, self.num_tokens
        if self.tree is not None:
            return tree_mask(parts, self.tree, start=start, num_tokens=num_tokens, dtype=dtype, device=device)
        if self.mask is not None:
            return self.mask
        return block_mask(parts, start=start, num_tokens=num_tokens, dtype=dtype, device=device)
