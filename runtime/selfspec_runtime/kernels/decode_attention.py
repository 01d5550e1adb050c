"""Launching the attention of few rows over a static cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from selfspec_runtime.kernels import attention_layout as layout

if TYPE_CHECKING:
    from torch import Tensor

LAUNCH = {"num_warps": 8, "enable_fp_fusion": False}
"""Options of every launch."""


def decode_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    scaling: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    split: int | None = None,
) -> Tensor:
    """Attend in two launches, reading the keys and values that a row of the mask sees and no others.

    Args:
        query: ``[1, heads, n, head_dim]``, heads contiguous, n at most 16; float32, bf16 or fp16.
        key: ``[1, kv_heads, columns, head_dim]`` of the same dtype, heads contiguous.
        value: ``[1, kv_heads, columns, value_dim]``, likewise.
        mask: Boolean (True = seen) or additive, ``[1, 1, n or 1, columns]``; None where all is seen. What adds
            -inf or the lowest number of the mask's dtype is not seen.
        scaling: Factor on the scores.
        softcap: Bound on the scores, or None.
        sinks: ``[heads]``, a logit for each head that takes mass and gives nothing, or None.
        split: Keys per split, a power of two from 16 on; by default as `split_size` says.

    Returns:
        ``[1, n, heads, value_dim]`` in the query's dtype, the same bits for any n and any number of columns that
        a row does not see; zeros for a row that sees nothing.
    """
    from selfspec_runtime.kernels import attention_kernels as kernels

    (_, heads, num_rows, dim), (_, kv_heads, num_columns, value_dim) = query.shape, value.shape
    split = split or layout.split_size(dim, value_dim, query.element_size())
    num_splits = -(-num_columns // split)
    entries = (num_rows * heads, num_splits)
    shapes = ((*entries, value_dim), entries, entries)
    parts = layout.SplitParts(*(torch.empty(shape, dtype=torch.float32, device=query.device) for shape in shapes))
    keys, values = (layout.CachedRows(t, t.stride(1), t.stride(2)) for t in (key, value))
    merged = torch.empty((1, num_rows, heads, value_dim), dtype=query.dtype, device=query.device)
    kind, lowest = _mask_kind(mask)
    shown = parts.sums if mask is None else mask.expand(1, 1, num_rows, num_columns)
    tile = {"VALUE_DIM": value_dim, "VALUE_TILE": layout.tile_width(value_dim)}
    kernels.attend_split_kernel[(num_splits, kv_heads)](
        query, *query.stride()[1:3], keys, values, shown, *shown.stride()[-2:],
        num_rows, num_columns, scaling, softcap or 0.0, parts, num_splits,
        GROUPS=heads // kv_heads, DIM=dim, DIM_TILE=layout.tile_width(dim), SPLIT=split, MASK=kind, LOWEST=lowest,
        HAS_SOFTCAP=softcap is not None, IS_WIDENED=_is_interpreted(kernels), **tile, **LAUNCH,
    )  # fmt: skip
    kernels.merge_splits_kernel[(entries[0],)](
        parts, num_splits, parts.sums if sinks is None else sinks, heads, merged,
        HAS_SINKS=sinks is not None, **tile, **LAUNCH,
    )  # fmt: skip
    return merged


def _mask_kind(mask: Tensor | None) -> tuple[int, float]:
    if mask is None:
        return layout.NO_MASK, 0.0
    if mask.dtype == torch.bool:
        return layout.BOOLEAN_MASK, 0.0
    return layout.ADDITIVE_MASK, torch.finfo(mask.dtype).min


def _is_interpreted(kernels: Any) -> bool:
    return type(kernels.attend_split_kernel).__name__ == "InterpretedFunction"
