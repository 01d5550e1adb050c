"""Laws of rows of logits on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from selfspec_runtime.kernels import layout
from selfspec_runtime.kernels.arguments import LawfulRows, LogitRows

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec_runtime.sampling import SamplingSettings

LAUNCH = {"num_warps": 8, "enable_fp_fusion": False}
"""Options of every launch. Nothing is fused, so that equal formulas in two kernels give equal bits."""


def law_params(settings: SamplingSettings, *, device: torch.device | str) -> Tensor:
    """Return the numbers of the settings that kernels read: float64 ``[4]``, see `layout`.

    They are read on the device, so that a captured graph serves other numbers after a copy into this tensor;
    whether top-k and top-p apply at all is decided on the host.

    Args:
        settings: Not greedy.
        device: Where they are to be.
    """
    top_p = 1.0 if settings.top_p is None else settings.top_p
    values = [settings.temperature, float(settings.top_k or 0), top_p, settings.min_p or 0.0]
    return torch.tensor(values, dtype=torch.float64, device=device)


def has_top_k(settings: SamplingSettings) -> bool:
    """Whether top-k applies."""
    return settings.top_k is not None


def has_top_p(settings: SamplingSettings) -> bool:
    """Whether top-p applies."""
    return settings.top_p is not None and settings.top_p < 1


def row_laws(logits: Tensor, params: Tensor, *, top_k: bool, top_p: bool, tile: int = layout.TILE) -> Tensor:
    """Return the law of each row.

    Takes 3 launches, 8 more with top-k and 9 more with top-p, for any number of rows and tokens.

    Args:
        logits: ``[n, V]``, rows contiguous, V at most 262,144.
        params: As `law_params` makes them.
        top_k: Whether to apply top-k.
        top_p: Whether to apply top-p.
        tile: Tokens per tile, a power of two.

    Returns:
        int64 ``[n, law_width(V)]``, see `layout`.
    """
    from selfspec_runtime.kernels import law_kernels

    (num_rows, size), tiles = logits.shape, layout.num_tiles(logits.shape[1], tile)
    work = torch.zeros((num_rows, layout.WORK_SLOTS), dtype=torch.int64, device=logits.device)
    tied = torch.empty((num_rows, tiles), dtype=torch.int64, device=logits.device)
    laws = torch.empty((num_rows, layout.LAW_HEAD + tiles), dtype=torch.int64, device=logits.device)
    grid, rows = (tiles, num_rows), LogitRows(logits, logits.stride(0), size)
    shared = {"TILE": tile, **LAUNCH}
    law_kernels.largest_kernel[grid](rows, params, work, **shared)
    for by_mass in [False] * top_k + [True] * top_p:
        for number in range(layout.NUM_PASSES):
            step = 1 << layout.RADIX_BITS * (layout.NUM_PASSES - 1 - number)
            law_kernels.search_kernel[grid](
                rows, params, work, BY_MASS=by_mass, HAS_TOP_K=top_k, PASS=number, STEP=step, **shared
            )
    if top_p:
        law_kernels.tied_kernel[grid](rows, params, work, tied, tiles, HAS_TOP_K=top_k, **shared)
    law_kernels.head_kernel[(num_rows,)](
        rows, params, work, tied, tiles, laws, laws.stride(0),
        HAS_TOP_K=top_k, HAS_TOP_P=top_p, TILES=power_of_two(tiles), **shared,
    )  # fmt: skip
    law_kernels.weigh_kernel[grid](LawfulRows(*rows, laws, laws.stride(0)), **shared)
    return laws


def power_of_two(number: int) -> int:
    """The smallest power of two that is not below a number from 1 on."""
    return 1 << (number - 1).bit_length()
