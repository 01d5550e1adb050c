"""Whole Llama-like decoder layers as one operation: what they cost in Python is then one call."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from selfspec_runtime.native.library import LayerStruct, PassStruct
from selfspec_runtime.native.operations import fits, heads_struct, kernels_at_hand, norm_struct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from selfspec_runtime.native.matrix import NativeMatrix
    from selfspec_runtime.native.operations import HeadShape, NormWeight


@dataclass(frozen=True)
class LayerWeights:
    """What a layer is made of.

    Attributes:
        attention_norm: Before the attention.
        qkv: Fused projections.
        o: The attention's output projection.
        mlp_norm: Before the MLP.
        gate_up: Fused gate and up projections.
        down: The MLP's output projection.
        head_norms: Norms of every query and every key head (Qwen3), or None.
    """

    attention_norm: NormWeight
    qkv: NativeMatrix
    o: NativeMatrix
    mlp_norm: NormWeight
    gate_up: NativeMatrix
    down: NativeMatrix
    head_norms: tuple[NormWeight, NormWeight] | None = None


class NativeLayer:
    """A layer as the kernels read it.

    Args:
        weights: Its weights.
        shape: Its heads.
        scale: Factor on the scores.
        index: Of its keys and values in a cache.
        silenced: What is left out, ``attention`` or ``mlp``; not both.

    Attributes:
        shape: As given.
        index: As given.
        dtype: Of the hidden states; None where weights differ, and no kernel can run them together.
        address: Of the description.
    """

    def __init__(
        self, weights: LayerWeights, shape: HeadShape, *, scale: float, index: int, silenced: str | None = None
    ) -> None:
        self.shape, self.index = shape, index
        heads = heads_struct(shape, weights.attention_norm, weights.head_norms)
        mlp_norm = norm_struct(weights.mlp_norm)
        attention = () if silenced == "attention" else (weights.qkv, weights.o)
        mlp = () if silenced == "mlp" else (weights.gate_up, weights.down)
        pointers = (*_structs(attention), *_structs(mlp))
        self._struct = LayerStruct(heads, mlp_norm, *pointers, scale, index)
        self.address = ctypes.addressof(self._struct)
        self._matrices = (*attention, *mlp)
        norms = (weights.attention_norm, weights.mlp_norm, *(weights.head_norms or ()))
        self._norms = [norm.weight for norm in norms]
        self._norm_places = [weight.data_ptr() for weight in self._norms]
        kinds = {each.dtype for each in (*self._matrices, *self._norms)}
        self.dtype = kinds.pop() if len(kinds) == 1 else None
        self._kept = [weight.data for weight in self._norms]  # while it lives, nothing else can come to lie there

    def has_moved(self) -> bool:
        """Whether a weight is another one or lies elsewhere by now."""
        if [weight.data_ptr() for weight in self._norms] != self._norm_places:
            return True
        return any([matrix.has_moved() for matrix in self._matrices])


class CacheAddresses:
    """Where every layer's keys and values lie.

    Args:
        keys: For each layer ``[1, kv_heads, capacity, dim]``, all of one shape.
        values: As ``keys``.
    """

    def __init__(self, keys: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        self._keys, self._values = (_pointers([held.data_ptr() for held in store]) for store in (keys, values))
        self.keys, self.values = ctypes.addressof(self._keys), ctypes.addressof(self._values)
        self.key_stride, self.value_stride = keys[0].stride(1), values[0].stride(1)
        self.num_layers = len(keys)
        self._kinds = {(held.dtype, held.shape, held.is_contiguous()) for held in (*keys, *values)}

    def hold(self, *, kv_heads: int, dim: int, dtype: torch.dtype) -> bool:
        """Whether every layer has such keys and such values."""
        if len(self._kinds) != 1:
            return False
        ((held, shape, is_plain),) = self._kinds
        return held == dtype and is_plain and (shape[0], shape[1], shape[3]) == (1, kv_heads, dim)


@dataclass(frozen=True)
class CacheSlots:
    """Where a pass writes its keys and values.

    Attributes:
        addresses: Of all layers' storage.
        start: First slot of the pass.
        live: Slots that its last row sees.
    """

    addresses: CacheAddresses
    start: int
    live: int

    @property
    def num_layers(self) -> int:
        """Layers of the cache."""
        return self.addresses.num_layers


def run_layers(
    layers: Sequence[NativeLayer], x: Tensor, slots: CacheSlots, mask: Tensor | None, rotary: tuple[Tensor, Tensor]
) -> Tensor:
    """Runs layers one after another, and writes their keys and values.

    Args:
        layers: At least one, of one shape, for which :func:`fits_layers` holds.
        x: ``[1, n, hidden]``, contiguous.
        slots: Where keys and values go.
        mask: Boolean ``[1, 1, n, live]``, or None where all is seen.
        rotary: Cosines and sines, ``[1, n, dim]``, contiguous, in ``x``'s dtype.

    Returns:
        ``[1, n, hidden]``.
    """
    out, addresses = torch.empty_like(x), slots.addresses
    description = PassStruct(
        rotary[0].data_ptr(),
        rotary[1].data_ptr(),
        addresses.keys,
        addresses.values,
        addresses.key_stride,
        addresses.value_stride,
        None if mask is None else mask.data_ptr(),
        0 if mask is None else mask.stride(2),
        x.shape[1],
        slots.start,
        slots.live,
    )
    chosen = _pointers([layer.address for layer in layers])
    arguments = ctypes.addressof(chosen), len(layers), ctypes.addressof(description), out.data_ptr()
    kernels_at_hand().call("layers", x.dtype, x.data_ptr(), *arguments)
    return out


def fits_layers(
    layers: Sequence[NativeLayer], x: Tensor, slots: CacheSlots, mask: Tensor | None, rotary: tuple[Tensor, Tensor]
) -> bool:
    """Whether the kernels take a pass through layers: they read and write memory as they are told, unchecked.

    Arguments are those of :func:`run_layers`.
    """
    shape, rows, cosine = layers[0].shape, x.shape[1], rotary[0]
    whole = (
        slots.live - slots.start == rows == cosine.shape[1] and max(each.index for each in layers) < slots.num_layers
    )
    plain = x.shape[0] == 1 and all(tensor.is_contiguous() for tensor in (x, *rotary))
    same = cosine.shape[-1] == shape.dim and {cosine.dtype, *(each.dtype for each in layers)} == {x.dtype}
    seen = (1, 1, rows, slots.live)
    read = mask is None or (mask.dtype == torch.bool and mask.shape == seen and mask.is_contiguous())
    return whole and plain and same and read and fits(rows, x.dtype, x.device)


def _structs(matrices: tuple[NativeMatrix, ...]) -> tuple[int | None, ...]:
    return tuple(matrix.struct for matrix in matrices) or (None, None)


def _pointers(addresses: list[int]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(addresses))(*addresses)
