"""Launching the kernels that draw draft tokens and decide blocks; every function returns device tensors.

A verdict is int64 ``[3]``: how many drafted tokens stand, the token after them, and 1 if a target row is no law
(a NaN, a +inf, or nothing but -inf), in which case the first two are valid and mean nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from selfspec_runtime.kernels import layout
from selfspec_runtime.kernels.arguments import Block, LawfulRows, LogitRows, Noise
from selfspec_runtime.kernels.row_law import LAUNCH, power_of_two

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class LawRows:
    """Rows of logits and their laws.

    Attributes:
        logits: ``[n, V]``, rows contiguous.
        laws: int64 ``[n, law_width(V)]``, made of these logits by `row_laws`.
        token_ids: For a draft over a part of the vocabulary: the tokens of the columns, int64 ``[V]``, ascending.
        index_of: Likewise the column of each token of the whole vocabulary, int32, -1 where there is none.
    """

    logits: Tensor
    laws: Tensor
    token_ids: Tensor | None = None
    index_of: Tensor | None = None

    @property
    def arguments(self) -> LawfulRows:
        """What kernels take."""
        logits, laws = self.logits, self.laws
        return LawfulRows(logits, logits.stride(0), logits.shape[1], laws, laws.stride(0))


def draft_token(
    row: LawRows, *, seed: Tensor, position: Tensor, round_start: Tensor, tile: int = layout.TILE
) -> Tensor:
    """Draw one draft token from its law, in one launch.

    Args:
        row: One row.
        seed: int64 ``[1]``, key of the noise.
        position: int64 ``[1]``, of the token.
        round_start: int64 ``[1]``, position of the round's first drafted token.
        tile: The tile width that the law was made with.

    Returns:
        int64 ``[1]``.
    """
    from selfspec_runtime.kernels import draw_kernels

    drawn = torch.empty((1,), dtype=torch.int64, device=row.logits.device)
    tiles = _tiles(row.logits.shape[1], tile)
    draw_kernels.draft_kernel[(1,)](
        row.arguments, _or(row.token_ids, drawn), _noise(seed, position), round_start, drawn,
        IS_REDUCED=row.token_ids is not None, TILES=tiles, TILE=tile, **LAUNCH,
    )  # fmt: skip
    return drawn


def rejection_verdict(
    draft_ids: Tensor,
    draft: LawRows | None,
    target: LawRows,
    *,
    seeds: Tensor,
    first_position: Tensor,
    tile: int = layout.TILE,
) -> Tensor:
    """Decide a block by rejection sampling, in three launches.

    Args:
        draft_ids: int64 ``[g]``, g >= 0; ids outside of the vocabulary are rejected.
        draft: The very rows that the tokens were drawn from, at least ``g``; None for tokens chosen without chance.
        target: ``g + 1`` rows.
        seeds: int64 ``[1]``, or ``[g + 1]`` for rows with seeds of their own.
        first_position: int64 ``[1]``, position of the first drafted token.
        tile: The tile width that the target's laws were made with.

    Returns:
        A verdict.
    """
    from selfspec_runtime.kernels import draw_kernels

    num_drafted, size = draft_ids.shape[0], target.logits.shape[1]
    rows = target if draft is None else draft
    block = Block(draft_ids, num_drafted, rows.arguments, _or(rows.index_of, draft_ids), target.arguments)
    noise = _noise(seeds, first_position)
    kind = {"HAS_LAWS": draft is not None, "IS_REDUCED": rows.index_of is not None, **LAUNCH}
    tiles = layout.num_tiles(size, tile)
    verdict = torch.empty((3,), dtype=torch.int64, device=draft_ids.device)
    masses = torch.empty((tiles,), dtype=torch.int64, device=draft_ids.device)
    draw_kernels.accept_kernel[(1,)](block, noise, verdict, ROWS=power_of_two(num_drafted + 1), **kind)
    draw_kernels.residual_kernel[(tiles,)](block, verdict, masses, TILE=tile, **kind)
    draw_kernels.correct_kernel[(1,)](block, noise, verdict, masses, TILES=_tiles(size, tile), TILE=tile, **kind)
    return verdict


def shared_best(rows: LawRows, *, seeds: Tensor, first_position: Tensor, tile: int = layout.TILE) -> Tensor:
    """Return each row's choice in match mode as entries to be read by `tokens_of` or `match_verdict`.

    Args:
        rows: ``n`` rows; row ``i`` decides position ``first_position + i``.
        seeds: int64 ``[1]`` or ``[n]``.
        first_position: int64 ``[1]``.
        tile: Tokens per tile.

    Returns:
        int64 ``[n]``.
    """
    from selfspec_runtime.kernels import best_kernels

    num_rows, size = rows.logits.shape
    best = torch.zeros((num_rows,), dtype=torch.int64, device=rows.logits.device)
    best_kernels.shared_token_kernel[(layout.num_tiles(size, tile), num_rows)](
        rows.arguments, _or(rows.token_ids, best), _noise(seeds, first_position), best,
        IS_REDUCED=rows.token_ids is not None, TILE=tile, **LAUNCH,
    )  # fmt: skip
    return best


def largest_best(logits: Tensor, *, tile: int = layout.TILE) -> Tensor:
    """Return each row's largest logit as entries to be read by `tokens_of` or `match_verdict`.

    Args:
        logits: ``[n, V]``, rows contiguous.
        tile: Tokens per tile.

    Returns:
        int64 ``[n]``.
    """
    from selfspec_runtime.kernels import best_kernels

    num_rows, size = logits.shape
    best = torch.zeros((num_rows,), dtype=torch.int64, device=logits.device)
    grid = (layout.num_tiles(size, tile), num_rows)
    best_kernels.largest_token_kernel[grid](LogitRows(logits, logits.stride(0), size), best, TILE=tile, **LAUNCH)
    return best


def tokens_of(best: Tensor) -> Tensor:
    """Return the tokens of entries, int64 ``[n]``: the lowest id among a row's largest."""
    from selfspec_runtime.kernels import best_kernels

    tokens = torch.empty_like(best)
    rows = best.shape[0]
    best_kernels.tokens_kernel[(1,)](best, rows, tokens, ROWS=power_of_two(rows), **LAUNCH)
    return tokens


def prefix_verdict(draft_ids: Tensor, best: Tensor, laws: Tensor | None = None) -> Tensor:
    """Keep drafted tokens while they are the target's own, in one launch.

    Args:
        draft_ids: int64 ``[g]``, g >= 0.
        best: Entries of the target's ``g + 1`` rows.
        laws: The laws that the entries come from; None for entries of logits.

    Returns:
        A verdict. A largest logit of +inf is no fault in greedy decoding.
    """
    from selfspec_runtime.kernels import best_kernels

    verdict = torch.empty((3,), dtype=torch.int64, device=best.device)
    num_drafted = draft_ids.shape[0]
    rows = best if laws is None else laws
    best_kernels.prefix_kernel[(1,)](
        draft_ids, num_drafted, best, rows, rows.stride(0), verdict,
        HAS_LAWS=laws is not None, ROWS=power_of_two(num_drafted + 1), **LAUNCH,
    )  # fmt: skip
    return verdict


def _tiles(size: int, tile: int) -> int:
    return power_of_two(layout.num_tiles(size, tile))


def _noise(seeds: Tensor, position: Tensor) -> Noise:
    return Noise(seeds, seeds.stride(0) if seeds.shape[0] > 1 else 0, position)


def _or(tensor: Tensor | None, unused: Tensor) -> Tensor:
    """A tensor for an argument that the kernel does not read."""
    return unused if tensor is None else tensor
