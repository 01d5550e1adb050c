"""Weights in bitsandbytes' four-bit formats, as codes, scales and levels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from selfspec_runtime.native.linear import FourBitLinear
from selfspec_runtime.native.matrix import BLOCK, four_bit_codes
from selfspec_runtime.native.row_groups import in_groups, in_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn


@dataclass(frozen=True)
class FourBitWeight:
    """A quantised weight (Dettmers et al. 2305.14314).

    Attributes:
        codes: ``[out, in / 4]`` int16, as the kernels read them.
        scales: ``[out, in / 64]`` float32, as the kernels read them.
        levels: ``[16]`` float32.
    """

    codes: Tensor
    scales: Tensor
    levels: Tensor

    @classmethod
    def quantized(cls, weight: Tensor) -> FourBitWeight:
        """Quantises ``[out, in]`` to NF4; ``in`` must be a multiple of 64."""
        from bitsandbytes.functional import quantize_4bit  # deferred: its import takes a second

        packed, state = quantize_4bit(weight.contiguous(), blocksize=BLOCK, quant_type="nf4")
        return cls._unpacked(packed, state.absmax, state.code, weight.shape)

    @classmethod
    def of(cls, linear: nn.Module) -> FourBitWeight | None:
        """The weight of a bitsandbytes layer that has not run yet (it repacks itself at its first call), or None."""
        weight: Any = getattr(linear, "weight", None)
        state = getattr(weight, "quant_state", None)
        kind = type(linear)  # PEFT's wrapper has the same name, and an adapter beside the weight
        is_stock = kind.__name__ == "Linear4bit" and kind.__module__.startswith("bitsandbytes.")
        if not is_stock or state is None or state.blocksize != BLOCK:
            return None
        rows, width = state.shape
        if width % BLOCK or weight.numel() * 2 != rows * width or weight.device.type != "cpu":
            return None
        return cls._unpacked(weight.data, _scales(state), state.code, state.shape)

    @classmethod
    def _unpacked(cls, packed: Tensor, scales: Tensor, levels: Tensor, shape: Sequence[int]) -> FourBitWeight:
        pairs = packed.view(-1).view(torch.uint8)
        nibbles = torch.stack([pairs >> 4, pairs & 15], dim=1).view(*shape)
        scales = in_groups(scales.float().view(shape[0], -1), 1)
        return cls(four_bit_codes(nibbles), scales, levels.float().contiguous())

    @classmethod
    def joined(cls, weights: Sequence[FourBitWeight], place: Callable[[Sequence[Tensor]], Tensor]) -> FourBitWeight:
        """One weight of several, one below the other.

        Args:
            weights: Of the same width and levels.
            place: Puts a tensor where it is to stay.
        """
        codes = torch.cat([in_rows(weight.codes, BLOCK // 4) for weight in weights])
        scales = torch.cat([in_rows(weight.scales, 1) for weight in weights])
        return cls(place([in_groups(codes, BLOCK // 4)]), place([in_groups(scales, 1)]), weights[0].levels)

    def linear(self, bias: Tensor | None, dtype: torch.dtype) -> FourBitLinear:
        """The layer that computes with it."""
        return FourBitLinear(self.codes, scales=self.scales, levels=self.levels, bias=bias, dtype=dtype)


def _scales(state: Any) -> Tensor:
    """Double quantisation holds the scales in eight bits."""
    if not state.nested:
        scales: Tensor = state.absmax
        return scales
    from bitsandbytes.functional import dequantize_blockwise

    nested: Tensor = dequantize_blockwise(state.absmax, state.state2) + state.offset
    return nested
