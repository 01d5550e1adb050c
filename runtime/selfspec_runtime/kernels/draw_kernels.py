"""Drawing a token from a law, and rejection sampling of a block; all of it stays on the device.

A token is drawn by inverting the running sum of weights: first over the tiles of the row, then inside of one
tile. Weights are whole numbers, so that both sums agree and no token of weight 0 can be drawn.
"""

from __future__ import annotations

import triton.language as tl

from selfspec_runtime.kernels import layout
from selfspec_runtime.kernels.arguments import Block, LawfulRows, Noise
from selfspec_runtime.kernels.jit import kernel
from selfspec_runtime.kernels.philox import uniform_at
from selfspec_runtime.kernels.tiles import first_above, goal_of, law_weights
from selfspec_runtime.noise import Stream

_LAW_HEAD = tl.constexpr(layout.LAW_HEAD)
_BROKEN_AT = tl.constexpr(layout.BROKEN_AT)
_TOTAL_AT = tl.constexpr(layout.TOTAL_AT)
_DRAFT = tl.constexpr(int(Stream.DRAFT))
_ACCEPT = tl.constexpr(int(Stream.ACCEPT))
_RESIDUAL = tl.constexpr(int(Stream.RESIDUAL))
_RESIDUAL_UNIT = tl.constexpr(float(1 << 60))


@kernel
def draft_kernel(
    rows: LawfulRows,
    token_ids: tl.tensor,
    noise: Noise,
    round_start: tl.tensor,
    drawn: tl.tensor,
    IS_REDUCED: tl.constexpr,
    TILES: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Draw one draft token from the first row. Grid: 1."""
    # A position drafted again after a rejection gets fresh noise: the round is part of the counter.
    u = uniform_at(tl.load(noise.seeds), tl.load(noise.position), tl.load(round_start), _DRAFT)
    tiles = tl.arange(0, TILES)
    masses = tl.load(rows.laws + _LAW_HEAD + tiles, mask=tiles * TILE < rows.size, other=0)
    goal = goal_of(u, tl.sum(masses, 0))
    tile = first_above(masses, goal)
    ids = tile * TILE + tl.arange(0, TILE)
    weights = law_weights(rows.logits, rows.laws, ids, ids < rows.size)
    token = tile * TILE + first_above(weights, goal - tl.sum(tl.where(tiles < tile, masses, 0), 0))
    if IS_REDUCED:
        tl.store(drawn, tl.load(token_ids + token))
    else:
        tl.store(drawn, token.to(tl.int64))


@kernel
def accept_kernel(
    block: Block,
    noise: Noise,
    verdict: tl.tensor,
    HAS_LAWS: tl.constexpr,
    IS_REDUCED: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """Count how many drafted tokens stand, and say whether a target row is no law. Grid: 1."""
    rows = tl.arange(0, ROWS).to(tl.int64)
    is_drafted = rows < block.num_drafted
    ids = tl.load(block.draft_ids + rows, mask=is_drafted, other=-1)
    inside = is_drafted & (ids >= 0) & (ids < block.target.size)
    own = tl.where(is_drafted, rows, 0)
    ratio = _probs_at(block.target, own, ids, inside)
    if HAS_LAWS:
        places = ids
        if IS_REDUCED:
            places = tl.load(block.index_of + tl.where(inside, ids, 0)).to(tl.int64)
        proposed = _probs_at(block.draft, own, places, inside & (places >= 0))
        inside = inside & (proposed > 0)
        ratio = ratio / tl.where(proposed > 0, proposed, 1.0)
    seed = tl.load(noise.seeds + own * noise.seed_stride)
    u = uniform_at(seed, tl.load(noise.position) + rows, rows * 0, _ACCEPT)
    stands = inside & (u < ratio)
    num_accepted = tl.min(tl.where(is_drafted & ~stands, rows, block.num_drafted), 0)
    checked = block.target.laws + tl.minimum(rows, block.num_drafted) * block.target.law_stride
    tl.store(verdict, num_accepted)
    tl.store(verdict + 2, tl.max(tl.load(checked + _BROKEN_AT), 0))


@kernel
def residual_kernel(
    block: Block,
    verdict: tl.tensor,
    masses: tl.tensor,
    HAS_LAWS: tl.constexpr,
    IS_REDUCED: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Weigh each tile by the law of the token after the accepted ones. Grid: tiles."""
    ids = tl.program_id(0) * TILE + tl.arange(0, TILE)
    weights = _correction_weights(block, tl.load(verdict), ids, HAS_LAWS, IS_REDUCED)
    tl.store(masses + tl.program_id(0), tl.sum(weights, 0))


@kernel
def correct_kernel(
    block: Block,
    noise: Noise,
    verdict: tl.tensor,
    masses: tl.tensor,
    HAS_LAWS: tl.constexpr,
    IS_REDUCED: tl.constexpr,
    TILES: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Draw the token after the accepted ones. Grid: 1."""
    row = tl.load(verdict)
    size = block.target.size
    tiles = tl.arange(0, TILES)
    inside = tiles * TILE < size
    residual = tl.load(masses + tiles, mask=inside, other=0)
    law = block.target.laws + row * block.target.law_stride
    # Only rounding leads to a residual without mass, and then the target speaks.
    is_spent = tl.sum(residual, 0) == 0
    residual = tl.where(is_spent, tl.load(law + _LAW_HEAD + tiles, mask=inside, other=0), residual)
    seed = tl.load(noise.seeds + row * noise.seed_stride)
    u = uniform_at(seed, tl.load(noise.position) + row, row * 0, _RESIDUAL)
    goal = goal_of(u, tl.sum(residual, 0))
    tile = first_above(residual, goal)
    ids = tile * TILE + tl.arange(0, TILE)
    weights = _correction_weights(block, row, ids, HAS_LAWS, IS_REDUCED)
    logits = block.target.logits + row * block.target.stride
    weights = tl.where(is_spent, law_weights(logits, law, ids, ids < size), weights)
    before = tl.sum(tl.where(tiles < tile, residual, 0), 0)
    tl.store(verdict + 1, (tile * TILE + first_above(weights, goal - before)).to(tl.int64))


@kernel
def _probs_at(rows: LawfulRows, row: tl.tensor, ids: tl.tensor, inside: tl.tensor) -> tl.tensor:
    """Probabilities of tokens under the laws of their rows, float64; 0 outside."""
    law = rows.laws + row * rows.law_stride
    weights = law_weights(rows.logits + row * rows.stride, law, tl.where(inside, ids, 0), inside)
    return weights.to(tl.float64) / tl.load(law + _TOTAL_AT).to(tl.float64)


@kernel
def _correction_weights(
    block: Block, row: tl.tensor, ids: tl.tensor, HAS_LAWS: tl.constexpr, IS_REDUCED: tl.constexpr
) -> tl.tensor:
    """Weights of the token after ``row`` accepted ones: of target - draft, or of the target where none was drafted."""
    size = block.target.size
    rejected = tl.load(block.draft_ids + row, mask=row < block.num_drafted, other=-1)
    is_residual = (rejected >= 0) & (rejected < size)
    target_law = block.target.laws + row * block.target.law_stride
    weights = law_weights(block.target.logits + row * block.target.stride, target_law, ids, ids < size)
    if HAS_LAWS:
        places, is_placed = ids.to(tl.int64), tl.where(is_residual, ids, size) < size
        if IS_REDUCED:
            places = tl.load(block.index_of + ids, mask=is_placed, other=-1).to(tl.int64)
            is_placed = is_placed & (places >= 0)
        target = weights.to(tl.float64) / tl.load(target_law + _TOTAL_AT).to(tl.float64)
        # After the last drafted token there is no draft law to read.
        draft_law = block.draft.laws + row * block.draft.law_stride
        total = tl.load(draft_law + _TOTAL_AT, mask=is_residual, other=1).to(tl.float64)
        draft_row = block.draft.logits + row * block.draft.stride
        draft = _masked_weights(draft_row, draft_law, places, is_placed, is_residual).to(tl.float64) / total
        residual = (tl.maximum(target - draft, 0.0) * _RESIDUAL_UNIT).to(tl.int64)
        return tl.where(is_residual, residual, weights)
    return tl.where(is_residual & (ids == rejected), 0, weights)


@kernel
def _masked_weights(
    draft_row: tl.tensor, draft_law: tl.tensor, places: tl.tensor, is_placed: tl.tensor, is_residual: tl.tensor
) -> tl.tensor:
    weights = places * 0
    if is_residual:
        weights = law_weights(draft_row, draft_law, places, is_placed)
    return weights
