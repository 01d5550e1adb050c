"""The order in which four-bit weights lie: as the matrix units take them in, so that memory is read front to back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

#: Rows whose blocks lie side by side; the last group of a matrix may have fewer.
GROUP = 32


def in_groups(values: Tensor, block_width: int) -> Tensor:
    """Puts the blocks of a group of rows together: the first block of each of its rows, then the second of each.

    Args:
        values: ``[rows, blocks x block_width]``, row after row.
        block_width: Values per block.

    Returns:
        The same values in the same shape; an element's place says nothing about its row any more.
    """
    return _exchanged(values, block_width, lambda rows, blocks: (rows, blocks))


def in_rows(values: Tensor, block_width: int) -> Tensor:
    """The inverse of :func:`in_groups`."""
    return _exchanged(values, block_width, lambda rows, blocks: (blocks, rows))


def _exchanged(values: Tensor, block_width: int, lie: Callable[[int, int], tuple[int, int]]) -> Tensor:
    rows, blocks = values.shape[0], values.shape[1] // block_width
    whole = rows - rows % GROUP
    parts = ((GROUP, values[:whole]), (rows - whole, values[whole:]))
    exchanged = [
        part.reshape(-1, *lie(height, blocks), block_width).transpose(1, 2).reshape(-1)
        for height, part in parts
        if part.numel()
    ]
    return torch.cat(exchanged).view(values.shape)
