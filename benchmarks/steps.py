"""What a pass over a few rows costs, and whether its rows are those of single steps, bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from selfspec_calibrate.timing import timer_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from selfspec_runtime.cache import KVCache
    from selfspec_runtime.target import Target

WIDTHS = (1, 2, 4, 5, 8, 16)
"""Rows of the passes that are timed."""
FLATNESS_ROWS = 5


def pass_costs(target: Target, *, contexts: tuple[int, ...], passes: int) -> list[dict[str, Any]]:
    """Times passes of every width in turn, at each number of positions.

    Args:
        target: The model.
        contexts: Positions that the cache holds.
        passes: Times that each is timed; medians count.

    Returns:
        For each context ``positions``, ``pass_s`` by rows, and ``flatness``, T(5) / T(1).
    """
    found = []
    for positions in contexts:
        ids, cache = filled(target, positions + max(WIDTHS))
        tasks = [_task(target, ids, cache, positions, width) for width in WIDTHS]
        seconds = dict(zip(WIDTHS, timer_for(target.device, repeats=passes)(tasks), strict=True))
        found.append(
            {
                "positions": positions,
                "pass_s": {str(width): each for width, each in seconds.items()},
                "flatness": seconds[FLATNESS_ROWS] / seconds[1],
            }
        )
    return found


def is_exact(target: Target, positions: int) -> bool:
    """Whether the logits of blocks of all widths are bit-equal to those of single steps."""
    ids, cache = filled(target, positions + max(WIDTHS))
    block = range(positions, positions + max(WIDTHS))
    single = torch.cat([target.logits(ids[at : at + 1], cache, start=at) for at in block])
    wide = (target.logits(ids[positions : positions + width], cache, start=positions) for width in WIDTHS)
    return all(torch.equal(single[: len(rows)], rows) for rows in wide)


def filled(target: Target, length: int) -> tuple[Tensor, KVCache]:
    """Random ids ``[length]`` and a cache that has read them."""
    size = int(target.model.config.get_text_config(decoder=True).vocab_size)
    ids = torch.randint(0, size, (length,), generator=torch.Generator().manual_seed(0)).to(target.device)
    cache = target.new_cache(capacity=length + max(WIDTHS))
    target.logits(ids, cache, start=0, keep=1)
    return ids, cache


def _task(target: Target, ids: Tensor, cache: KVCache, start: int, width: int) -> Callable[[], object]:
    block = ids[start : start + width]
    return lambda: target.logits(block, cache, start=start)
