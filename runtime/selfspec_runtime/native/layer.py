"""A whole Llama-like decoder layer as one operation: what a layer costs in Python is then one call."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from selfspec_runtime.native.library import HeadsStruct, LayerStruct, MlpStruct, PassStruct
from selfspec_runtime.native.operations import kernels_at_hand

if TYPE_CHECKING:
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


@dataclass(frozen=True)
class CacheSlots:
    """Where a pass writes its keys and values.

    Attributes:
        keys: ``[1, kv_heads, capacity, dim]``.
        values: As ``keys``.
        start: First slot of the pass.
        live: Slots that its last row sees.
    """

    keys: Tensor
    values: Tensor
    start: int
    live: int


class NativeLayer:
    """Runs a layer for a few rows.

    Args:
        weights: Its weights.
        shape: Its heads.
        scale: Factor on the scores.
    """

    def __init__(self, weights: LayerWeights, shape: HeadShape, scale: float) -> None:
        self.weights = weights
        query_norm, key_norm = weights.head_norms or (None, None)
        heads = HeadsStruct(
            weights.attention_norm.weight.data_ptr(),
            None if query_norm is None else query_norm.weight.data_ptr(),
            None if key_norm is None else key_norm.weight.data_ptr(),
            weights.attention_norm.eps,
            shape.queries,
            shape.keys,
            shape.dim,
        )
        mlp = MlpStruct(weights.mlp_norm.weight.data_ptr(), weights.mlp_norm.eps)
        matrices = (weights.qkv, weights.o, weights.gate_up, weights.down)
        self._struct = LayerStruct(heads, mlp, *(matrix.struct for matrix in matrices), scale)
        self._address = ctypes.addressof(self._struct)

    def __call__(self, x: Tensor, slots: CacheSlots, mask: Tensor | None, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """Maps hidden states and writes keys and values.

        Args:
            x: ``[1, n, hidden]``, contiguous.
            slots: Where keys and values go.
            mask: Boolean ``[1, 1, n, live]``, or None where all is seen.
            rotary: Cosines and sines, ``[1, n, dim]``, contiguous, in ``x``'s dtype.

        Returns:
            ``[1, n, hidden]``.
        """
        out = torch.empty_like(x)
        description = PassStruct(
            rotary[0].data_ptr(),
            rotary[1].data_ptr(),
            slots.keys.data_ptr(),
            slots.values.data_ptr(),
            slots.keys.stride(1),
            slots.values.stride(1),
            None if mask is None else mask.data_ptr(),
            0 if mask is None else mask.stride(2),
            x.shape[1],
            slots.start,
            slots.live,
        )
        arguments = x.data_ptr(), self._address, ctypes.addressof(description), out.data_ptr()
        kernels_at_hand().call("layer", x.dtype, *arguments)
        return out
