"""Sizes and arguments that attention kernels and their launcher agree on."""

from __future__ import annotations

from typing import Any, NamedTuple

TILE_ROWS = 16
"""Rows of one product, heads times rows of a pass: the least that tensor cores take, and always as many."""

MAX_ROWS = TILE_ROWS
"""Most rows of a pass: the mask of all of them fits into one tile."""

MAX_DIM = 256
"""Widest head."""

CHUNK = 16
"""Splits that are merged at once."""

NO_MASK, BOOLEAN_MASK, ADDITIVE_MASK = range(3)

_TILE_NUMBERS = {2: 8192, 4: 2048}
_MIN_SPLIT, _MAX_SPLIT = 16, 128


class CachedRows(NamedTuple):
    """Keys or values of a cache; tensors on the host, pointers in a kernel.

    Attributes:
        numbers: ``[1, kv_heads, columns, dim]``, heads contiguous.
        head_stride: From head to head.
        row_stride: From position to position.
    """

    numbers: Any
    head_stride: Any
    row_stride: Any


class SplitParts(NamedTuple):
    """What the rows have read of each split; an entry is a head of a row.

    Attributes:
        outputs: float32 ``[entries, splits, value_dim]``: values weighed by exp(score - peak).
        peaks: float32 ``[entries, splits]``: the largest score.
        sums: float32 ``[entries, splits]``: the weights' sum; 0 where nothing is seen, the rest then unwritten.
    """

    outputs: Any
    peaks: Any
    sums: Any


def tile_width(dim: int) -> int:
    """Width of the tile for a head: a power of two that tensor cores take."""
    return max(16, 1 << (dim - 1).bit_length())


def split_size(dim: int, value_dim: int, element_bytes: int) -> int:
    """Keys per split: what fits into registers, from 16 to 128; it depends on the model alone.

    Args:
        dim: Width of a key.
        value_dim: Width of a value.
        element_bytes: Bytes per number. Products of float32 do not run on tensor cores, and take more registers.
    """
    width = max(tile_width(dim), tile_width(value_dim))
    return min(max(_TILE_NUMBERS[element_bytes] // width, _MIN_SPLIT), _MAX_SPLIT)
