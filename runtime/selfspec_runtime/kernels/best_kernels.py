"""The largest entry of each row, and how many drafted tokens equal it: greedy decoding and match mode.

Both choose the token with the largest key, the lowest id among equals: greedy by logits, match by log
probability plus the Gumbel noise that draft and target share. An entry travels as one int64, its key above and
its inverted id below, so that the maximum over tiles is one atomic operation and does not depend on order.
"""

from __future__ import annotations

import triton.language as tl

from selfspec_runtime.kernels import layout
from selfspec_runtime.kernels.arguments import LawfulRows, LogitRows, Noise
from selfspec_runtime.kernels.jit import kernel
from selfspec_runtime.kernels.philox import gumbel_at
from selfspec_runtime.kernels.tiles import keys_of, law_weights, scores_at
from selfspec_runtime.noise import Stream

_TEMPERATURE_AT = tl.constexpr(layout.TEMPERATURE_AT)
_LARGEST_AT = tl.constexpr(layout.LARGEST_AT)
_BROKEN_AT = tl.constexpr(layout.BROKEN_AT)
_INF_KEY = tl.constexpr(layout.INF_KEY)
_SHARED = tl.constexpr(int(Stream.SHARED))
_OFFSET = tl.constexpr(1 << 31)
_LAST_ID = tl.constexpr((1 << 31) - 1)


@kernel
def largest_token_kernel(rows: LogitRows, best: tl.tensor, TILE: tl.constexpr) -> None:
    """Find each row's largest logit. Grid: tiles, rows."""
    row = tl.program_id(1).to(tl.int64)
    ids = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = ids < rows.size
    scores = tl.load(rows.logits + row * rows.stride + ids, mask=inside, other=float("-inf")).to(tl.float32)
    tl.atomic_max(best + row, _best(keys_of(scores), ids, inside))


@kernel
def shared_token_kernel(
    rows: LawfulRows,
    token_ids: tl.tensor,
    noise: Noise,
    best: tl.tensor,
    IS_REDUCED: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Find each row's largest log probability plus shared Gumbel noise. Grid: tiles, rows."""
    row = tl.program_id(1).to(tl.int64)
    ids = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = ids < rows.size
    row_ptr, law = rows.logits + row * rows.stride, rows.laws + row * rows.law_stride
    temperature = tl.load(law + _TEMPERATURE_AT).to(tl.int32).to(tl.float32, bitcast=True)
    largest = tl.load(law + _LARGEST_AT).to(tl.int32).to(tl.float32, bitcast=True)
    is_broken = tl.load(law + _BROKEN_AT) != 0
    log_ratios = tl.where(is_broken, 0.0, scores_at(row_ptr, ids, inside, temperature) - largest)
    tokens = ids
    if IS_REDUCED:
        tokens = tl.load(token_ids + ids, mask=inside, other=0).to(tl.int32)
    seed = tl.load(noise.seeds + row * noise.seed_stride)
    shared = gumbel_at(seed, tl.load(noise.position) + row, tokens, _SHARED)
    possible = law_weights(row_ptr, law, ids, inside) > 0
    scores = tl.where(possible, log_ratios + shared, float("-inf"))
    tl.atomic_max(best + row, _best(keys_of(scores), tokens, inside))


@kernel
def tokens_kernel(best: tl.tensor, num_rows: tl.tensor, tokens: tl.tensor, ROWS: tl.constexpr) -> None:
    """Read the tokens of the largest entries. Grid: 1."""
    rows = tl.arange(0, ROWS)
    found = tl.load(best + rows, mask=rows < num_rows, other=0)
    tl.store(tokens + rows, _token_of(found), mask=rows < num_rows)


@kernel
def prefix_kernel(
    draft_ids: tl.tensor,
    num_drafted: tl.tensor,
    best: tl.tensor,
    laws: tl.tensor,
    law_stride: tl.tensor,
    verdict: tl.tensor,
    HAS_LAWS: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """Count how many drafted tokens are the target's own, and say whether a target row is no law. Grid: 1."""
    rows = tl.arange(0, ROWS)
    is_drafted, is_row = rows < num_drafted, rows <= num_drafted
    found = tl.load(best + rows, mask=is_row, other=0)
    tokens = _token_of(found)
    matches = tl.load(draft_ids + rows, mask=is_drafted, other=-1) == tokens
    num_accepted = tl.min(tl.where(is_drafted & ~matches, rows, num_drafted), 0)
    if HAS_LAWS:
        broken = tl.load(laws + rows.to(tl.int64) * law_stride + _BROKEN_AT, mask=is_row, other=0)
    else:
        key = (found >> 31) - _OFFSET
        broken = (is_row & ((key > _INF_KEY) | (key <= -_INF_KEY - 1))).to(tl.int64)
    tl.store(verdict, num_accepted.to(tl.int64))
    tl.store(verdict + 1, tl.sum(tl.where(rows == num_accepted, tokens, 0), 0))
    tl.store(verdict + 2, tl.max(broken, 0))


@kernel
def _best(keys: tl.tensor, tokens: tl.tensor, inside: tl.tensor) -> tl.tensor:
    entries = ((keys.to(tl.int64) + _OFFSET) << 31) + (tokens ^ _LAST_ID).to(tl.int64)
    return tl.max(tl.where(inside, entries, 0), 0)


@kernel
def _token_of(found: tl.tensor) -> tl.tensor:
    return (found & _LAST_ID) ^ _LAST_ID
