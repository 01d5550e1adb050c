"""Memory for weights that are read from end to end at every step.

Weights are laid one after the other into large blocks on huge pages, so that reading them costs few address
translations: in float32 a step of a 135M model took 30 ms instead of 36.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

BLOCK_BYTES = 64 * 2**20
HUGE_PAGE_BYTES = 2 * 2**20
#: Where a weight begins: a cache line.
ALIGNMENT = 64
_PAGE_BYTES = 4096
#: ``madvise`` of Linux: back this memory with huge pages; and do it now for what is there already (from 6.1 on).
_HUGE_PAGES, _COLLAPSE = 14, 25


class WeightArena:
    """Hands out memory from blocks on huge pages; a block lives as long as a weight in it."""

    def __init__(self) -> None:
        self._block = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def joined(self, weights: Sequence[Tensor]) -> Tensor:
        """Copies weights of the same dtype and width one below the other into the arena.

        Args:
            weights: ``[rows, ...]`` each, on a CPU.

        Returns:
            ``[sum of rows, ...]``.
        """
        first = weights[0]
        shape = (sum(weight.shape[0] for weight in weights), *first.shape[1:])
        home = self._room(torch.Size(shape).numel() * first.element_size()).view(first.dtype).view(shape)
        return torch.cat([weight.detach() for weight in weights], out=home)

    def _room(self, num_bytes: int) -> Tensor:
        if self._used + num_bytes > self._block.numel():
            self._block = _aligned_block(max(num_bytes, BLOCK_BYTES))
            self._used = 0
        room = self._block[self._used : self._used + num_bytes]
        self._used += -(-num_bytes // ALIGNMENT) * ALIGNMENT
        return room


def advise_huge_pages(weight: Tensor) -> None:
    """Moves a large weight that stays where it is onto huge pages, where the system can."""
    _advise(weight, _HUGE_PAGES)
    _advise(weight, _COLLAPSE)


def _aligned_block(num_bytes: int) -> Tensor:
    whole = torch.empty(num_bytes + HUGE_PAGE_BYTES, dtype=torch.uint8)
    start = -whole.data_ptr() % HUGE_PAGE_BYTES
    block = whole[start : start + num_bytes]
    _advise(block, _HUGE_PAGES)
    return block


def _advise(tensor: Tensor, advice: int) -> None:
    """A hint: what the system makes of it changes the speed and nothing else, so that a refusal is no error."""
    madvise = _madvise()
    begin = -(-tensor.data_ptr() // _PAGE_BYTES) * _PAGE_BYTES
    end = (tensor.data_ptr() + tensor.numel() * tensor.element_size()) // _PAGE_BYTES * _PAGE_BYTES
    if madvise is not None and tensor.device.type == "cpu" and end > begin:
        madvise(begin, end - begin, advice)


@functools.cache
def _madvise() -> Any:
    if sys.platform != "linux":
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function
