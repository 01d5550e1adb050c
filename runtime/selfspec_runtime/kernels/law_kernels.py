"""From logits to laws without a sort: a radix search for the thresholds of top-k and top-p.

A token is kept if its key (see `keys_of`) is at least a threshold: the largest key at or above which there are
k tokens (top-k), or enough of the mass that top-k left (top-p). Both are found digit by digit, from the highest
of eight digits to the lowest, each in one pass that counts, for the 16 values of the digit, what lies at or
above it. A search is therefore exact, ties included, and takes as many launches for any row.
"""

from __future__ import annotations

import triton.language as tl

from selfspec_runtime.kernels import layout
from selfspec_runtime.kernels.arguments import LawfulRows, LogitRows
from selfspec_runtime.kernels.jit import kernel
from selfspec_runtime.kernels.tiles import (
    first_above,
    is_broken,
    keys_of,
    law_weights,
    ratios_of,
    score_of,
    scores_at,
    units_of,
)

_LAW_HEAD = tl.constexpr(layout.LAW_HEAD)
_TEMPERATURE_AT = tl.constexpr(layout.TEMPERATURE_AT)
_LARGEST_AT = tl.constexpr(layout.LARGEST_AT)
_MIN_RATIO_AT = tl.constexpr(layout.MIN_RATIO_AT)
_THRESHOLD_AT = tl.constexpr(layout.THRESHOLD_AT)
_CUT_AT = tl.constexpr(layout.CUT_AT)
_BROKEN_AT = tl.constexpr(layout.BROKEN_AT)
_TOTAL_AT = tl.constexpr(layout.TOTAL_AT)
_LARGEST_SLOT = tl.constexpr(layout.LARGEST_SLOT)
_TIED_SLOT = tl.constexpr(layout.TIED_SLOT)
_COUNT_SLOT = tl.constexpr(layout.COUNT_SLOT)
_MASS_SLOT = tl.constexpr(layout.MASS_SLOT)
_WORK_SLOTS = tl.constexpr(layout.WORK_SLOTS)
_RADIX = tl.constexpr(layout.RADIX)
_RADIX_BITS = tl.constexpr(layout.RADIX_BITS)
_NUM_PASSES = tl.constexpr(layout.NUM_PASSES)
_TEMPERATURE = tl.constexpr(layout.PARAM_TEMPERATURE)
_TOP_K = tl.constexpr(layout.PARAM_TOP_K)
_TOP_P = tl.constexpr(layout.PARAM_TOP_P)
_MIN_P = tl.constexpr(layout.PARAM_MIN_P)
_OFFSET = tl.constexpr(1 << 31)
_LOWEST_KEY = tl.constexpr(-(1 << 31))


@kernel
def largest_kernel(rows: LogitRows, settings: tl.tensor, work: tl.tensor, TILE: tl.constexpr) -> None:
    """Find each row's largest key, a NaN's if there is one. Grid: tiles, rows."""
    row = tl.program_id(1).to(tl.int64)
    ids = tl.program_id(0) * TILE + tl.arange(0, TILE)
    temperature = tl.load(settings + _TEMPERATURE).to(tl.float32)
    keys = keys_of(scores_at(rows.logits + row * rows.stride, ids, ids < rows.size, temperature))
    tl.atomic_max(work + row * _WORK_SLOTS + _LARGEST_SLOT, tl.max(keys, 0).to(tl.int64) + _OFFSET)


@kernel
def search_kernel(
    rows: LogitRows,
    settings: tl.tensor,
    work: tl.tensor,
    BY_MASS: tl.constexpr,
    HAS_TOP_K: tl.constexpr,
    PASS: tl.constexpr,
    STEP: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """One pass of a search: measure what lies at or above each value of a digit. Grid: tiles, rows."""
    row = tl.program_id(1).to(tl.int64)
    ids = tl.program_id(0) * TILE + tl.arange(0, TILE)
    work_row = work + row * _WORK_SLOTS
    temperature = tl.load(settings + _TEMPERATURE).to(tl.float32)
    scores = scores_at(rows.logits + row * rows.stride, ids, ids < rows.size, temperature)
    keys = keys_of(scores)
    if BY_MASS:
        search = work_row + _MASS_SLOT
        measures = _top_k_units(scores, keys, work_row, settings, rows.size, HAS_TOP_K)
        prefix = _found(search, _wanted_mass(search, settings), PASS)
    else:
        search = work_row + _COUNT_SLOT
        measures = (ids < rows.size).to(tl.int64)
        prefix = _found(search, _wanted_count(settings, rows.size), PASS)
    if tl.program_id(0) == 0:
        tl.store(search + _NUM_PASSES * _RADIX + PASS, prefix)
    for digit in tl.static_range(_RADIX):
        bound = (prefix + digit * STEP - _OFFSET).to(tl.int32)
        above = tl.sum(tl.where(keys >= bound, measures, 0), 0)
        tl.atomic_add(search + PASS * _RADIX + digit, above)


@kernel
def tied_kernel(
    rows: LogitRows,
    settings: tl.tensor,
    work: tl.tensor,
    tied: tl.tensor,
    num_tiles: tl.tensor,
    HAS_TOP_K: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Count each tile's tokens at the top-p threshold, and weigh all tokens from there on. Grid: tiles, rows."""
    row = tl.program_id(1).to(tl.int64)
    ids = tl.program_id(0) * TILE + tl.arange(0, TILE)
    work_row = work + row * _WORK_SLOTS
    temperature = tl.load(settings + _TEMPERATURE).to(tl.float32)
    scores = scores_at(rows.logits + row * rows.stride, ids, ids < rows.size, temperature)
    keys = keys_of(scores)
    threshold = _top_p_key(work_row, settings)
    units = _top_k_units(scores, keys, work_row, settings, rows.size, HAS_TOP_K)
    tl.atomic_add(work_row + _TIED_SLOT, tl.sum(tl.where(keys >= threshold, units, 0), 0))
    count = tl.sum(((keys == threshold) & (ids < rows.size)).to(tl.int64), 0)
    tl.store(tied + row * num_tiles + tl.program_id(0), count)


@kernel
def head_kernel(
    rows: LogitRows,
    settings: tl.tensor,
    work: tl.tensor,
    tied: tl.tensor,
    num_tiles: tl.tensor,
    laws: tl.tensor,
    law_stride: tl.tensor,
    HAS_TOP_K: tl.constexpr,
    HAS_TOP_P: tl.constexpr,
    TILES: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Write the heads of the laws. Grid: rows."""
    row = tl.program_id(0).to(tl.int64)
    work_row, law = work + row * _WORK_SLOTS, laws + row * law_stride
    temperature = tl.load(settings + _TEMPERATURE).to(tl.float32)
    largest_key = (tl.load(work_row + _LARGEST_SLOT) - _OFFSET).to(tl.int32)
    threshold = _top_k_key(work_row, settings, rows.size, HAS_TOP_K)
    cut = threshold * 0
    if HAS_TOP_P:
        threshold = _top_p_key(work_row, settings)
        num_dropped = _num_tied_dropped(work_row, settings, threshold, largest_key)
        cut = _cut_id(
            rows.logits + row * rows.stride,
            rows.size,
            temperature,
            tied + row * num_tiles,
            num_tiles,
            threshold,
            num_dropped,
            TILES,
            TILE,
        )
    tl.store(law + _TEMPERATURE_AT, temperature.to(tl.int32, bitcast=True).to(tl.int64))
    tl.store(law + _MIN_RATIO_AT, tl.load(settings + _MIN_P).to(tl.float32).to(tl.int32, bitcast=True).to(tl.int64))
    tl.store(law + _LARGEST_AT, score_of(largest_key).to(tl.int32, bitcast=True).to(tl.int64))
    tl.store(law + _THRESHOLD_AT, threshold.to(tl.int64))
    tl.store(law + _CUT_AT, cut.to(tl.int64))
    tl.store(law + _BROKEN_AT, is_broken(largest_key).to(tl.int64))
    tl.store(law + _TOTAL_AT, threshold.to(tl.int64) * 0)


@kernel
def weigh_kernel(rows: LawfulRows, TILE: tl.constexpr) -> None:
    """Write the weight of each tile, and add it to the row's. Grid: tiles, rows."""
    row = tl.program_id(1).to(tl.int64)
    ids = tl.program_id(0) * TILE + tl.arange(0, TILE)
    law = rows.laws + row * rows.law_stride
    weight = tl.sum(law_weights(rows.logits + row * rows.stride, law, ids, ids < rows.size), 0)
    tl.store(law + _LAW_HEAD + tl.program_id(0), weight)
    tl.atomic_add(law + _TOTAL_AT, weight)


@kernel
def _found(search: tl.tensor, wanted: tl.tensor, PASS: tl.constexpr) -> tl.tensor:
    """The digits that the passes before this one have found, as int64 in 0..2**32 - 1."""
    if PASS == 0:
        return wanted * 0
    digits = tl.arange(0, _RADIX)
    above = tl.load(search + (PASS - 1) * _RADIX + digits)
    digit = tl.sum(((above >= wanted) & (digits > 0)).to(tl.int64), 0)
    return tl.load(search + _NUM_PASSES * _RADIX + PASS - 1) + (digit << (_RADIX_BITS * (_NUM_PASSES - PASS)))


@kernel
def _wanted_count(settings: tl.tensor, size: tl.tensor) -> tl.tensor:
    return tl.minimum(tl.maximum(tl.load(settings + _TOP_K), 1.0), size * 1.0).to(tl.int64)


@kernel
def _dropped_mass(search: tl.tensor, settings: tl.tensor) -> tl.tensor:
    """The mass that may be dropped, of the whole, which is what lies at or above the lowest value."""
    return ((1.0 - tl.load(settings + _TOP_P)) * tl.load(search).to(tl.float64)).to(tl.int64)


@kernel
def _wanted_mass(search: tl.tensor, settings: tl.tensor) -> tl.tensor:
    return tl.maximum(tl.load(search) - _dropped_mass(search, settings), 1)


@kernel
def _top_k_key(work_row: tl.tensor, settings: tl.tensor, size: tl.tensor, HAS_TOP_K: tl.constexpr) -> tl.tensor:
    wanted = _wanted_count(settings, size)
    if HAS_TOP_K:
        return (_found(work_row + _COUNT_SLOT, wanted, _NUM_PASSES) - _OFFSET).to(tl.int32)
    return (wanted * 0 - _OFFSET).to(tl.int32)


@kernel
def _top_p_key(work_row: tl.tensor, settings: tl.tensor) -> tl.tensor:
    search = work_row + _MASS_SLOT
    return (_found(search, _wanted_mass(search, settings), _NUM_PASSES) - _OFFSET).to(tl.int32)


@kernel
def _top_k_units(
    scores: tl.tensor,
    keys: tl.tensor,
    work_row: tl.tensor,
    settings: tl.tensor,
    size: tl.tensor,
    HAS_TOP_K: tl.constexpr,
) -> tl.tensor:
    largest = score_of((tl.load(work_row + _LARGEST_SLOT) - _OFFSET).to(tl.int32))
    # A broken row has no mass to search; its law does not come from it.
    usable = ratios_of(scores, largest) >= 0.0
    units = units_of(tl.where(usable, ratios_of(scores, largest), 0.0))
    return tl.where(keys >= _top_k_key(work_row, settings, size, HAS_TOP_K), units, 0)


@kernel
def _num_tied_dropped(
    work_row: tl.tensor, settings: tl.tensor, threshold: tl.tensor, largest_key: tl.tensor
) -> tl.tensor:
    search = work_row + _MASS_SLOT
    below = tl.load(search) - tl.load(work_row + _TIED_SLOT)
    unit = units_of(ratios_of(score_of(threshold), score_of(largest_key)))
    return (_dropped_mass(search, settings) - below) // tl.maximum(unit, 1)


@kernel
def _cut_id(
    row_ptr: tl.tensor,
    size: tl.tensor,
    temperature: tl.tensor,
    tied: tl.tensor,
    num_tiles: tl.tensor,
    threshold: tl.tensor,
    num_dropped: tl.tensor,
    TILES: tl.constexpr,
    TILE: tl.constexpr,
) -> tl.tensor:
    """The id of the first token at the threshold that is kept: the last one at least."""
    tiles = tl.arange(0, TILES)
    counts = tl.load(tied + tiles, mask=tiles < num_tiles, other=0)
    goal = tl.minimum(num_dropped, tl.sum(counts, 0) - 1)
    tile = first_above(counts, goal)
    before = tl.sum(tl.where(tiles < tile, counts, 0), 0)
    ids = tile * TILE + tl.arange(0, TILE)
    keys = keys_of(scores_at(row_ptr, ids, ids < size, temperature))
    return tile * TILE + first_above(((keys == threshold) & (ids < size)).to(tl.int64), goal - before)
