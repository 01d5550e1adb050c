"""A weight matrix as the kernels read it: dense as torch holds it, or in four bits."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch

from selfspec_runtime.native.library import MatrixStruct
from selfspec_runtime.native.row_groups import in_groups, in_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

#: Weights of a row that share one scale.
BLOCK = 64
_LANES = 16


class NativeMatrix:
    """Describes a matrix to the kernels and keeps its memory alive.

    Args:
        data: ``[rows, width]`` of the model's dtype, row-major; or four-bit codes ``[rows, width / 4]`` int16, as
            :func:`four_bit_codes` lays them out.
        bias: ``[rows]`` of the model's dtype, or None.
        scales: Of four-bit codes: ``[rows, width / 64]`` float32, in groups of rows.
        levels: Of four-bit codes: their sixteen values, float32.
        dtype: Of the hidden states that it is for; what is float32 may be held in bfloat16.
        owners: The parameters whose memory ``data`` and ``bias`` are, which may be given other memory.

    Attributes:
        dtype: As given; None where no kernel can read what there is, a bias of another dtype or memory of a device.
        rows: Outputs.
        width: Inputs.
        struct: Address of the description.
    """

    def __init__(
        self,
        data: Tensor,
        bias: Tensor | None = None,
        *,
        scales: Tensor | None = None,
        levels: Tensor | None = None,
        dtype: torch.dtype,
        owners: Sequence[Tensor] = (),
    ) -> None:
        self.rows = data.shape[0]
        self.width = data.shape[1] * (1 if scales is None else 4)
        self._held = (data, bias, scales, levels)
        assert all(tensor is None or tensor.is_contiguous() for tensor in self._held), "kernels read plain memory"
        is_at_hand = all(tensor is None or tensor.device.type == "cpu" for tensor in self._held)
        self.dtype = dtype if is_at_hand and (bias is None or bias.dtype == dtype) else None
        pointers = (None if tensor is None else tensor.data_ptr() for tensor in (data, scales, levels, bias))
        is_halved = scales is None and data.dtype != dtype
        self._struct = MatrixStruct(*pointers, self.rows, self.width, int(is_halved))
        self.struct = ctypes.addressof(self._struct)
        self._owners, self._places = tuple(owners), [owner.data_ptr() for owner in owners]
        self._is_expired = False

    def has_moved(self) -> bool:
        """Whether the weight is another one or lies elsewhere by now, so that it must be described anew."""
        return self._is_expired or [owner.data_ptr() for owner in self._owners] != self._places

    def expire(self) -> None:
        """Says that the weight was replaced; whoever holds this description learns it from `has_moved`."""
        self._is_expired = True


def four_bit_codes(nibbles: Tensor) -> Tensor:
    """Lays four-bit codes out for the kernels.

    Args:
        nibbles: ``[rows, width]`` uint8, each below 16; the width a multiple of 64.

    Returns:
        ``[rows, width / 4]`` int16, in groups of rows: half-word ``l`` of a block holds codes ``l``, ``l + 16``,
        ``l + 32``, ``l + 48``.
    """
    parts = nibbles.view(nibbles.shape[0], -1, 4, _LANES).to(torch.int32)
    words = parts[:, :, 0] | parts[:, :, 1] << 4 | parts[:, :, 2] << 8 | parts[:, :, 3] << 12
    return in_groups(words.to(torch.int16).flatten(1), _LANES)


def nibbles_of(codes: Tensor) -> Tensor:
    """The inverse of :func:`four_bit_codes`: ``[rows, width]`` uint8."""
    words = in_rows(codes, _LANES).view(codes.shape[0], -1, 1, _LANES).to(torch.int32)
    shifts = torch.arange(0, 16, 4, dtype=torch.int32).view(1, 1, 4, 1)
    return ((words >> shifts) & 15).to(torch.uint8).flatten(1)
