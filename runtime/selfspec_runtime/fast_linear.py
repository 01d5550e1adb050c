"""The fastest form of a linear layer on a CPU: the own kernels, or oneDNN's packed form where they cannot be had."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from selfspec_runtime.four_bit import FourBitWeight
from selfspec_runtime.native.halved import HalvedLinear, can_be_halved
from selfspec_runtime.native.library import native_status
from selfspec_runtime.native.linear import DenseLinear, KernelLinear, NativeLinear, is_native
from selfspec_runtime.packed_linear import PackedLinear, is_packable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from selfspec_runtime.weight_arena import WeightArena

#: Every form that this module makes.
FAST = (KernelLinear, PackedLinear)


def can_be_fast(linear: nn.Module) -> bool:
    """Whether a module is a linear layer, dense or in four bits, that has a faster form here."""
    return is_native(linear) or is_packable(linear) or is_four_bit(linear)


def is_four_bit(linear: nn.Module) -> bool:
    """Whether a module is a bitsandbytes layer that the own kernels can run."""
    return native_status().kernels is not None and FourBitWeight.of(linear) is not None


def fast_linear(linear: Any, arena: WeightArena | None = None) -> nn.Module:
    """The fast form of a layer for which :func:`can_be_fast` holds.

    Args:
        linear: The layer.
        arena: Where its weight is put; None to leave it where it is, so that a tied weight stays shared
            (but for a float32 one that half the memory holds, which gets a copy).
    """
    place = _as_it_is if arena is None else arena.joined
    return _fast([linear], linear.bias, place)


def fused(linears: Sequence[Any], arena: WeightArena) -> nn.Module:
    """One fast layer for several of the same input; their outputs follow one another.

    Args:
        linears: Layers for which :func:`can_be_fused` holds.
        arena: Where their weight is put.
    """
    bias = None if linears[0].bias is None else torch.cat([linear.bias.detach() for linear in linears])
    return _fast(linears, bias, arena.joined)


def _fast(linears: Sequence[Any], bias: Tensor | None, place: Callable[[Sequence[Tensor]], Tensor]) -> nn.Module:
    four_bit = [weight for weight in map(FourBitWeight.of, linears) if weight is not None]
    if four_bit:
        return FourBitWeight.joined(four_bit, place).linear(bias, _compute_dtype(linears[0]))
    weights = [linear.weight for linear in linears]
    if not is_native(linears[0]):
        return PackedLinear(torch.cat(weights) if len(weights) > 1 else weights[0], bias)
    if all(can_be_halved(weight) for weight in weights):
        return HalvedLinear(place([weight.detach().bfloat16() for weight in weights]), bias)
    return NativeLinear(place(weights), bias)


def _as_it_is(weights: Sequence[Tensor]) -> Tensor:
    (weight,) = weights
    return weight


def can_be_fused(linears: Sequence[nn.Module]) -> bool:
    """Whether several layers are all of one fast kind."""
    kinds = ({is_four_bit(linear) for linear in linears}, {is_native(linear) for linear in linears})
    return all(can_be_fast(linear) for linear in linears) and all(len(kind) == 1 for kind in kinds)


def dense_weight(linear: Any) -> Tensor | None:
    """The weight ``[out, in]`` of a linear layer that is not quantised, whatever its form; else None."""
    if isinstance(linear, DenseLinear | PackedLinear):
        return linear.dense_weight()
    if type(linear) is nn.Linear:
        weight: Tensor = linear.weight.detach()
        return weight
    return None


def _compute_dtype(linear: Any) -> torch.dtype:
    dtype: torch.dtype | None = linear.compute_dtype
    return torch.bfloat16 if dtype is None else dtype
