"""Attention of few rows over a static cache in two launches: each split of the keys by itself, then their merger.

Splits begin at multiples of a fixed size and are merged in the order of the text, so that a row's result has the
same bits whatever number of rows stand beside it, and however far the cache reaches beyond what it sees
(flash-decoding, Dao et al. 2023, with splits that do not depend on the load). What is live the mask says: a split
that no row sees is neither read nor merged, be it behind the text or before a sliding window.
"""

from __future__ import annotations

from functools import partial

import triton.language as tl

from selfspec_runtime.kernels.attention_layout import (
    ADDITIVE_MASK,
    CHUNK,
    NO_MASK,
    TILE_ROWS,
    CachedRows,
    SplitParts,
)
from selfspec_runtime.kernels.jit import kernel

_ADDITIVE_MASK = tl.constexpr(ADDITIVE_MASK)
_NO_MASK = tl.constexpr(NO_MASK)
_ROWS = tl.constexpr(TILE_ROWS)
_CHUNK = tl.constexpr(CHUNK)
_UNSEEN = tl.constexpr(float("-inf"))

#: What changes from pass to pass: a variant for some of its values might add up in another order. Entries of named
#: tuples are specialised whatever is said here, so that these come one by one.
_VARYING = (
    "query", "query_head_stride", "query_row_stride", "mask", "mask_row_stride", "mask_column_stride",
    "num_rows", "num_columns", "num_splits",
)  # fmt: skip


@partial(kernel, unspecialized=_VARYING)
def attend_split_kernel(
    query: tl.tensor,
    query_head_stride: tl.tensor,
    query_row_stride: tl.tensor,
    keys: CachedRows,
    values: CachedRows,
    mask: tl.tensor,
    mask_row_stride: tl.tensor,
    mask_column_stride: tl.tensor,
    num_rows: tl.tensor,
    num_columns: tl.tensor,
    scaling: tl.tensor,
    softcap: tl.tensor,
    parts: SplitParts,
    num_splits: tl.tensor,
    GROUPS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_TILE: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_TILE: tl.constexpr,
    SPLIT: tl.constexpr,
    MASK: tl.constexpr,
    LOWEST: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    IS_WIDENED: tl.constexpr,
) -> None:
    """Attend all rows to one split of one key head. Grid: splits, key heads.

    The query heads of a key head are rows, too: ``GROUPS`` of them for each row of the pass, in tiles of 16.
    """
    split, kv_head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    columns = split * SPLIT + tl.arange(0, SPLIT)
    block = tl.arange(0, _ROWS)
    shown = _bias(
        mask, block, mask_row_stride, num_rows, columns, mask_column_stride, num_columns, MASK=MASK, LOWEST=LOWEST
    )
    is_column_seen = tl.max(shown, 0) > _UNSEEN
    is_seen = tl.max(is_column_seen.to(tl.int32), 0) > 0
    dims, value_dims = tl.arange(0, DIM_TILE), tl.arange(0, VALUE_TILE)
    places = columns.to(tl.int64)[:, None]
    key_tile = tl.load(
        keys.numbers + kv_head * keys.head_stride + places * keys.row_stride + dims[None, :],
        mask=is_column_seen[:, None] & (dims < DIM)[None, :],
        other=0.0,
    )
    value_tile = tl.load(
        values.numbers + kv_head * values.head_stride + places * values.row_stride + value_dims[None, :],
        mask=is_column_seen[:, None] & (value_dims < VALUE_DIM)[None, :],
        other=0.0,
    )
    num_queries = num_rows * GROUPS
    for first in range(0, num_queries, _ROWS):
        queries = first + block
        is_query = queries < num_queries
        rows, heads = queries // GROUPS, kv_head * GROUPS + queries % GROUPS
        entries = (rows * tl.num_programs(1) * GROUPS + heads) * num_splits + split
        if is_seen:
            query_tile = tl.load(
                query + heads[:, None] * query_head_stride + rows[:, None] * query_row_stride + dims[None, :],
                mask=is_query[:, None] & (dims < DIM)[None, :],
                other=0.0,
            )
            scores = _dot(query_tile, tl.trans(key_tile), IS_WIDENED) * scaling
            if HAS_SOFTCAP:
                scores = softcap * _tanh(scores / softcap)
            bias = _bias(
                mask,
                rows,
                mask_row_stride,
                num_rows,
                columns,
                mask_column_stride,
                num_columns,
                MASK=MASK,
                LOWEST=LOWEST,
            )
            scores = tl.where(bias > _UNSEEN, scores + bias, _UNSEEN)
            peak = tl.max(scores, 1)
            weights = tl.exp(scores - tl.where(peak > _UNSEEN, peak, 0.0)[:, None])
            out = _dot(weights.to(value_tile.dtype), value_tile, IS_WIDENED)
            tl.store(parts.peaks + entries, peak, mask=is_query)
            tl.store(parts.sums + entries, tl.sum(weights, 1), mask=is_query)
            tl.store(
                parts.outputs + entries[:, None] * VALUE_DIM + value_dims[None, :],
                out,
                mask=is_query[:, None] & (value_dims < VALUE_DIM)[None, :],
            )
        else:
            tl.store(parts.sums + entries, tl.zeros((_ROWS,), tl.float32), mask=is_query)


@partial(kernel, unspecialized=_VARYING)
def merge_splits_kernel(
    parts: SplitParts,
    num_splits: tl.tensor,
    sinks: tl.tensor,
    num_heads: tl.tensor,
    merged: tl.tensor,
    VALUE_DIM: tl.constexpr,
    VALUE_TILE: tl.constexpr,
    HAS_SINKS: tl.constexpr,
) -> None:
    """Merge the splits of one head of one row, in order. Grid: rows times heads."""
    entry = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, VALUE_TILE)
    if HAS_SINKS:
        peak = tl.load(sinks + entry % num_heads).to(tl.float32)
        total = tl.full((), 1.0, tl.float32)
    else:
        peak = tl.full((), float("-inf"), tl.float32)
        total = tl.full((), 0.0, tl.float32)
    out = tl.zeros((VALUE_TILE,), tl.float32)
    for first in range(0, num_splits, _CHUNK):
        splits = first + tl.arange(0, _CHUNK)
        places = entry * num_splits + splits
        split_sums = tl.load(parts.sums + places, mask=splits < num_splits, other=0.0)
        is_live = split_sums != 0.0
        split_peaks = tl.load(parts.peaks + places, mask=is_live, other=_UNSEEN)
        top = tl.maximum(peak, tl.max(split_peaks, 0))
        base = tl.where(top > _UNSEEN, top, 0.0)
        factors = tl.where(is_live, tl.exp(split_peaks - base), 0.0)
        split_outputs = tl.load(
            parts.outputs + places[:, None] * VALUE_DIM + dims[None, :],
            mask=is_live[:, None] & (dims < VALUE_DIM)[None, :],
            other=0.0,
        )
        fading = tl.exp(peak - base)
        out = out * fading + tl.sum(split_outputs * factors[:, None], 0)
        total = total * fading + tl.sum(split_sums * factors, 0)
        peak = top
    out = tl.where(total == 0.0, 0.0, out / tl.where(total == 0.0, 1.0, total))
    tl.store(merged + entry * VALUE_DIM + dims, out.to(merged.dtype.element_ty), mask=dims < VALUE_DIM)


@kernel
def _bias(
    mask: tl.tensor,
    rows: tl.tensor,
    row_stride: tl.tensor,
    num_rows: tl.tensor,
    columns: tl.tensor,
    column_stride: tl.tensor,
    num_columns: tl.tensor,
    MASK: tl.constexpr,
    LOWEST: tl.constexpr,
) -> tl.tensor:
    """What is added to the scores, -inf for what is not seen; ``[rows, columns]`` float32."""
    is_inside = (rows < num_rows)[:, None] & (columns < num_columns)[None, :]
    if MASK == _NO_MASK:
        return tl.where(is_inside, 0.0, _UNSEEN)
    places = rows.to(tl.int64)[:, None] * row_stride + columns.to(tl.int64)[None, :] * column_stride
    if MASK == _ADDITIVE_MASK:
        added = tl.load(mask + places, mask=is_inside, other=_UNSEEN).to(tl.float32)
        return tl.where(added > LOWEST, added, _UNSEEN)
    seen = tl.load(mask + places, mask=is_inside, other=0)
    return tl.where(seen != 0, 0.0, _UNSEEN)


@kernel
def _dot(left: tl.tensor, right: tl.tensor, IS_WIDENED: tl.constexpr) -> tl.tensor:
    """A product in float32; float32 factors are not shortened to TF32."""
    if IS_WIDENED:
        # Triton's interpreter multiplies the bits of bf16 as if they were whole numbers.
        left, right = left.to(tl.float32), right.to(tl.float32)
    return tl.dot(left, right, input_precision="ieee")


@kernel
def _tanh(x: tl.tensor) -> tl.tensor:
    faded = tl.exp(-2.0 * tl.abs(x))
    bound = (1.0 - faded) / (1.0 + faded)
    return tl.where(x < 0.0, -bound, bound)
