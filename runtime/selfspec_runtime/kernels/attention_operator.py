"""Attention of few rows as a custom operator: Triton on CUDA, torch on a CPU, shapes alone on meta tensors.

    selfspec::decode_attention   queries, keys, values, mask -> what each query's head reads

Nothing is read on the host on CUDA, so it can be captured: what is live comes in the mask, a tensor.
"""

from __future__ import annotations

import torch
from torch import Tensor

from selfspec_runtime.folded_attention import folded_attention
from selfspec_runtime.kernels import decode_attention as launcher
from selfspec_runtime.kernels.attention_layout import MAX_DIM, MAX_ROWS
from selfspec_runtime.kernels.interpreter import is_interpreted
from selfspec_runtime.kernels.placement import on_its_device
from selfspec_runtime.kernels.triton_status import has_triton

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@torch.library.custom_op("selfspec::decode_attention", mutates_args=())
@on_its_device
def decode_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    sinks: Tensor | None,
    scaling: float,
    softcap: float | None,
) -> Tensor:
    """Attend ``[1, heads, n, head_dim]`` to a cache; arguments and result as in `decode_attention.decode_attention`."""
    if query.device.type != "cuda" and not is_interpreted():
        return folded_attention(query, key, value, mask, scaling=scaling, softcap=softcap, sinks=sinks)
    return launcher.decode_attention(query, key, value, mask, scaling=scaling, softcap=softcap, sinks=sinks)


@decode_attention.register_fake
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    sinks: Tensor | None,
    scaling: float,
    softcap: float | None,
) -> Tensor:
    _, heads, num_rows, _ = query.shape
    return query.new_empty((1, num_rows, heads, value.shape[3]))


def serves(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether the operator takes these on their device: few rows on CUDA, or on meta tensors that stand for it.

    Args:
        query: ``[batch, heads, n, head_dim]``.
        key: ``[batch, kv_heads, columns, head_dim]``.
        value: ``[batch, kv_heads, columns, value_dim]``.
        mask: ``[batch, 1, n or 1, columns]``, or None.
    """
    if not is_for_kernels(query.device):
        return False
    block = (query, key, value)
    few = query.shape[0] == 1 and query.shape[2] <= MAX_ROWS and key.shape[2] > 0
    narrow = all(t.shape[3] <= MAX_DIM and t.stride(3) == 1 for t in block)
    alike = query.dtype in _DTYPES and all(t.dtype == query.dtype and not t.requires_grad for t in block)
    one_mask = mask is None or mask.shape[:2] == (1, 1)
    return few and narrow and alike and one_mask


def is_for_kernels(device: torch.device) -> bool:
    """Whether tensors there are attended to by the operator."""
    return device.type == "meta" or (device.type == "cuda" and has_triton())
