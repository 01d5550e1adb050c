"""What every kernel does with a tile of a row: read its scores, order them, weigh them, pick from them.

Sums are sums of 64-bit integers, so that they do not depend on the order of adding, on the number of rows or
on the width of a tile: a law that was computed while drafting and one that is computed while verifying are
equal bit for bit.
"""

from __future__ import annotations

import triton.language as tl

from selfspec_runtime.kernels.jit import kernel
from selfspec_runtime.kernels.layout import (
    BROKEN_AT,
    CUT_AT,
    INF_KEY,
    LARGEST_AT,
    MIN_RATIO_AT,
    NAN_KEY,
    TEMPERATURE_AT,
    THRESHOLD_AT,
)

_BROKEN_AT = tl.constexpr(BROKEN_AT)
_CUT_AT = tl.constexpr(CUT_AT)
_LARGEST_AT = tl.constexpr(LARGEST_AT)
_MIN_RATIO_AT = tl.constexpr(MIN_RATIO_AT)
_TEMPERATURE_AT = tl.constexpr(TEMPERATURE_AT)
_THRESHOLD_AT = tl.constexpr(THRESHOLD_AT)
_INF_KEY = tl.constexpr(INF_KEY)
_NAN_KEY = tl.constexpr(NAN_KEY)
_UNIT = tl.constexpr(float(1 << 44))


@kernel
def scores_at(row_ptr: tl.tensor, ids: tl.tensor, inside: tl.tensor, temperature: tl.tensor) -> tl.tensor:
    """Read logits as float32 over the temperature, correctly rounded; -inf outside of the row."""
    logits = tl.load(row_ptr + ids, mask=inside, other=float("-inf")).to(tl.float32)
    return tl.div_rn(logits, temperature)


@kernel
def keys_of(scores: tl.tensor) -> tl.tensor:
    """Map float32 to int32 so that the order is kept, equal numbers get one key and a NaN the largest."""
    bits = tl.where(scores == 0.0, 0.0, scores).to(tl.int32, bitcast=True)
    keys = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return tl.where(scores != scores, _NAN_KEY, keys)


@kernel
def score_of(key: tl.tensor) -> tl.tensor:
    """The float32 that `keys_of` mapped to an int32."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@kernel
def is_broken(largest_key: tl.tensor) -> tl.tensor:
    """Whether a row with this largest key has a NaN or +inf, or nothing but -inf."""
    return (largest_key >= _INF_KEY) | (largest_key <= -_INF_KEY - 1)


@kernel
def ratios_of(scores: tl.tensor, largest: tl.tensor) -> tl.tensor:
    """Each token's probability over that of the likeliest one, float32."""
    return tl.exp(scores - largest)


@kernel
def units_of(ratios: tl.tensor) -> tl.tensor:
    """Ratios as whole numbers of 2**-44; 2**18 of them fit into int64."""
    return (ratios * _UNIT).to(tl.int64)


@kernel
def law_weights(logits_ptr: tl.tensor, law_ptr: tl.tensor, ids: tl.tensor, inside: tl.tensor) -> tl.tensor:
    """Weigh tokens by the law of their row: int64, proportional to their probability.

    Args:
        logits_ptr: The row, or one row for each id.
        law_ptr: The row's law, or likewise.
        ids: Tokens.
        inside: Which of them to look at; the others weigh 0.
    """
    temperature = tl.load(law_ptr + _TEMPERATURE_AT).to(tl.int32).to(tl.float32, bitcast=True)
    largest = tl.load(law_ptr + _LARGEST_AT).to(tl.int32).to(tl.float32, bitcast=True)
    min_ratio = tl.load(law_ptr + _MIN_RATIO_AT).to(tl.int32).to(tl.float32, bitcast=True)
    threshold = tl.load(law_ptr + _THRESHOLD_AT).to(tl.int32)
    scores = scores_at(logits_ptr, ids, inside, temperature)
    keys = keys_of(scores)
    ratios = ratios_of(scores, largest)
    kept = (keys > threshold) | ((keys == threshold) & (ids >= tl.load(law_ptr + _CUT_AT)))
    weights = tl.where(kept & (ratios >= min_ratio), units_of(ratios), 0)
    # A row that is no law stands for the uniform one.
    return tl.where(inside, tl.where(tl.load(law_ptr + _BROKEN_AT) != 0, 1, weights), 0)


@kernel
def first_above(weights: tl.tensor, goal: tl.tensor) -> tl.tensor:
    """Index of the first entry at which the running sum exceeds ``goal``: one whose weight is not 0.

    The number of entries if the whole sum does not exceed it.
    """
    return tl.sum((tl.cumsum(weights, 0) <= goal).to(tl.int32), 0)


@kernel
def goal_of(u: tl.tensor, total: tl.tensor) -> tl.tensor:
    """A whole number in 0..total - 1, the share ``u`` of a total."""
    share = (u * total.to(tl.float64)).to(tl.int64)
    return tl.minimum(share, total - 1)
