"""The kernels as functions of tensors; all are for a CPU, without gradients, and for at most ``MAX_ROWS`` rows."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from selfspec_runtime.native.library import (
    MAX_ROWS,
    SUFFIXES,
    AttentionStruct,
    HeadsStruct,
    Kernels,
    NormStruct,
    native_status,
)

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec_runtime.native.matrix import NativeMatrix

#: Head widths must be multiples of a vector's length.
LANES = 16


@dataclass(frozen=True)
class NormWeight:
    """An RMSNorm that an operation applies to its input.

    Attributes:
        weight: ``[width]``.
        eps: Added to the mean square.
    """

    weight: Tensor
    eps: float


@dataclass(frozen=True)
class HeadShape:
    """How a fused projection's outputs are divided into heads.

    Attributes:
        queries: Query heads.
        keys: Key and value heads.
        dim: Width of a head, even.
    """

    queries: int
    keys: int
    dim: int


def fits(rows: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the kernels take a block of this kind, and are at hand; what runs under autocast is torch's."""
    is_taken = rows <= MAX_ROWS and dtype in SUFFIXES and device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    return is_taken and native_status().kernels is not None


def linear(x: Tensor, matrix: NativeMatrix, norm: NormWeight | None = None) -> Tensor:
    """Maps ``[..., width]``, normed if there is a norm, to ``[..., rows of the matrix]``."""
    x = x.contiguous()
    out, entry = x.new_empty(*x.shape[:-1], matrix.rows), norm_struct(norm)
    kernels_at_hand().call(
        "linear", x.dtype, x.data_ptr(), ctypes.addressof(entry), matrix.struct, num_rows(x), out.data_ptr()
    )
    return out


def gated_mlp(x: Tensor, norm: NormWeight | None, *, gate_up: NativeMatrix, down: NativeMatrix) -> Tensor:
    """``down(silu(gate(norm(x))) * up(norm(x)))`` for ``[..., hidden]``."""
    x = x.contiguous()
    out, entry = torch.empty_like(x), norm_struct(norm)
    kernels_at_hand().call(
        "gated_mlp",
        x.dtype,
        x.data_ptr(),
        ctypes.addressof(entry),
        gate_up.struct,
        down.struct,
        num_rows(x),
        out.data_ptr(),
    )
    return out


def project(
    x: Tensor,
    norm: NormWeight | None,
    qkv: NativeMatrix,
    *,
    shape: HeadShape,
    rotary: tuple[Tensor, Tensor],
    head_norms: tuple[NormWeight, NormWeight] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normed hidden states to rotated queries and keys, and values.

    Args:
        x: ``[1, n, hidden]``.
        norm: Applied to ``x``, or None.
        qkv: The three projections, one after the other.
        shape: How its outputs are divided.
        rotary: Cosines and sines, ``[1, n, dim]`` each, in ``x``'s dtype.
        head_norms: Applied to every query and every key head before the rotation (Qwen3).

    Returns:
        ``[1, heads, n, dim]`` each.
    """
    x, cosine, sine = x.contiguous(), rotary[0].contiguous(), rotary[1].contiguous()
    rows = num_rows(x)
    queries = x.new_empty(1, shape.queries, rows, shape.dim)
    keys, values = (x.new_empty(1, shape.keys, rows, shape.dim) for _ in range(2))
    heads = heads_struct(shape, norm, head_norms)
    kernels_at_hand().call(
        "project",
        x.dtype,
        x.data_ptr(),
        ctypes.addressof(heads),
        qkv.struct,
        cosine.data_ptr(),
        sine.data_ptr(),
        rows,
        queries.data_ptr(),
        keys.data_ptr(),
        values.data_ptr(),
    )
    return queries, keys, values


def can_attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether :func:`attention` takes these, shaped as ``grouped_attention`` gets them."""
    dim = query.shape[3]
    plain = all(t.shape[3] == dim and t.stride(3) == 1 and t.stride(2) == dim for t in (key, value))
    seen = mask is None or (mask.dtype == torch.bool and mask.shape[:2] == (1, 1) and mask.stride(3) == 1)
    same = query.dtype == key.dtype == value.dtype and query.shape[0] == 1 and not query.requires_grad
    return dim % LANES == 0 and plain and seen and same and fits(query.shape[2], query.dtype, query.device)


def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, scale: float, softcap: float | None
) -> Tensor:
    """Softmax attention; the arguments of ``grouped_attention``, the result ``[1, n, heads, dim]``."""
    query = query.contiguous()
    _, heads, rows, dim = query.shape
    kv_heads, live = key.shape[1], key.shape[2]
    out = query.new_empty(1, rows, heads, dim)
    seen = None if mask is None else mask.expand(1, 1, rows, live)
    description = AttentionStruct(
        query.data_ptr(),
        key.data_ptr(),
        value.data_ptr(),
        key.stride(1),
        value.stride(1),
        None if seen is None else seen.data_ptr(),
        0 if seen is None else seen.stride(2),
        heads,
        kv_heads,
        rows,
        live,
        dim,
        scale,
        softcap or 0.0,
    )
    kernels_at_hand().call("attention", query.dtype, ctypes.addressof(description), out.data_ptr())
    return out


def kernels_at_hand() -> Kernels:
    """The kernels, for callers that have asked :func:`fits`."""
    kernels = native_status().kernels
    assert kernels is not None, "callers ask fits() first"
    return kernels


def num_rows(x: Tensor) -> int:
    """Rows of hidden states ``[..., width]``."""
    return x.numel() // x.shape[-1]


def norm_struct(norm: NormWeight | None) -> NormStruct:
    """A norm, or none, as the kernels take it; it holds an address, which the caller keeps alive."""
    return NormStruct(None, 0.0) if norm is None else NormStruct(norm.weight.data_ptr(), norm.eps)


def heads_struct(
    shape: HeadShape, norm: NormWeight | None, head_norms: tuple[NormWeight, NormWeight] | None
) -> HeadsStruct:
    """Heads and the norms before them as the kernels take them; it holds addresses, as :func:`norm_struct`."""
    query_norm, key_norm = head_norms or (None, None)
    norms = (norm_struct(each) for each in (norm, query_norm, key_norm))
    return HeadsStruct(*norms, shape.queries, shape.keys, shape.dim)
