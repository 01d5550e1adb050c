"""Whether a verification has the very bits of single steps on this model and machine.

Then speculation changes no token even in bfloat16 and four bits: nothing is left to ties. Own kernels and packed
products round a row alike however many stand beside it; what else a family runs is found out by running it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from selfspec_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from selfspec_runtime.engine import Engine
    from selfspec_runtime.target import Target

#: Blocks are compared at several places, where other kernels may be chosen for other lengths.
STARTS = (24, 40)


def require_exact(engine: Engine) -> None:
    """Compares blocks as the plan makes them with single steps, bit for bit: every width at the first place.

    Args:
        engine: The model with its plan.

    Raises:
        UsageError: The plan has side branches, or they differ, so that speculation may change a token where two are
            nearly tied.
    """
    if engine.plan.max_branches:
        message = (
            "Exact decoding was asked for, and side branches stand in other slots of the cache than single steps do, "
            "so that sums are added up in another order. Leave exact out, or take a plan without branches."
        )
        raise UsageError(message)
    target, rows = engine.target, engine.plan.max_draft_tokens + 1
    limit = target.max_positions
    if limit is not None:
        rows = min(rows, limit - 1)  # one position before the block, at the least
    widths = range(2, rows + 1)
    for start in _starts(rows, limit) if widths else ():
        for width, difference in differences(target, start=start, widths=widths):
            if difference != 0:
                raise _inexact(target, width, difference)
        widths = widths[-1:]


def _starts(rows: int, limit: int | None) -> tuple[int, ...]:
    """Places that fit into the context, in order; more of them where it is short, since passes cost little there."""
    room = None if limit is None else limit - rows
    if room is None or room >= STARTS[-1]:
        return STARTS
    return tuple(dict.fromkeys(max(room * quarter // 4, 1) for quarter in (1, 2, 3, 4)))


def _inexact(target: Target, width: int, difference: float) -> UsageError:
    wider = "" if target.dtype == torch.float32 else " use float32,"
    return UsageError(
        f"Exact decoding was asked for, and a block of {width} rows differs from single steps by up to "
        f"{difference:.2g} in a logit of {type(target.model).__name__} in "
        f"{str(target.dtype).removeprefix('torch.')} here. Leave exact out,{wider} or draft fewer tokens."
    )


def differences(target: Target, *, start: int, widths: Sequence[int]) -> Iterator[tuple[int, float]]:
    """Compares rows of blocks with the same rows alone.

    Args:
        target: The model.
        start: Position of the blocks, 1 at the least.
        widths: Their widths, one at the least, in ascending order.

    Yields:
        Every width, with the largest difference of a logit in a block of it.
    """
    rows = max(widths)
    vocab = target.model.get_input_embeddings().num_embeddings
    ids = (torch.arange(start + rows, device=target.device) * 7919 + 11) % vocab
    cache = target.new_cache(capacity=start + rows)
    target.logits(ids[:start], cache, start=0, keep=1)
    alone = [target.logits(ids[at : at + 1], cache, start=at)[0].float() for at in range(start, start + rows)]
    for width in widths:
        block = target.logits(ids[start : start + width], cache, start=start).float()
        wanted = torch.stack(alone[:width])
        yield width, float((block - wanted).abs().masked_fill(block == wanted, 0.0).max())
