"""Positions and masks of a pass over a tree: a row's slot in the cache is not its position in the text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from selfspec_runtime.masks import masks_by_window

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec_runtime.architecture import DecoderParts
    from selfspec_runtime.masks import Mask
    from selfspec_runtime.tree.token_tree import PlacedTree, TokenTree


def tree_positions(placed: PlacedTree, *, start: int, num_tokens: int, device: torch.device) -> Tensor:
    """Positions of the rows in the slots ``start .. start + num_tokens - 1``, ``[num_tokens]`` int64."""
    first = start - placed.start
    depths = placed.tree.depths[first : first + num_tokens]
    return torch.tensor([placed.start + depth for depth in depths], dtype=torch.long, device=device)


def tree_mask(
    parts: DecoderParts,
    placed: PlacedTree,
    *,
    start: int,
    num_tokens: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Mask:
    """The mask of a pass over the slots ``start .. start + num_tokens - 1``, as the family wants it.

    A row sees everything before the tree, the rows on its own path, and itself; within a window's reach, which is
    counted in positions.
    """
    stop = start + num_tokens
    rows = tree_positions(placed, start=start, num_tokens=num_tokens, device=device)
    inside = tree_positions(placed, start=placed.start, num_tokens=stop - placed.start, device=device)
    columns = torch.cat([torch.arange(placed.start, device=device), inside])
    related = _related(placed.tree, device)[start - placed.start : stop - placed.start, : stop - placed.start]
    before = torch.ones(num_tokens, placed.start, dtype=torch.bool, device=device)
    on_path = torch.cat([before, related], dim=1)

    def seen(window: int | None) -> Tensor:
        near = on_path if window is None else on_path & (columns[None, :] > rows[:, None] - window)
        return near[None, None]

    return masks_by_window(parts, seen, dtype=dtype)


def _related(tree: TokenTree, device: torch.device) -> Tensor:
    """Bool ``[rows, rows]``: whether the second row is on the path to the first."""
    related = [[False] * len(tree) for _ in range(len(tree))]
    for row, path in enumerate(tree.paths):
        for each in path:
            related[row][each] = True
    return torch.tensor(related, dtype=torch.bool, device=device)
