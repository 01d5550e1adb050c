"""Whether a verification has the very bits of single steps on this model and machine.

Then speculation changes no token even in bfloat16 and four bits: nothing is left to ties. Own kernels and packed
products round a row alike however many stand beside it; what else a family runs is found out by running it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from selfspec_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selfspec_runtime.engine import Engine
    from selfspec_runtime.target import Target

#: Blocks are compared at several places, where other kernels may be chosen for other lengths.
STARTS = (24, 40)


def require_exact(engine: Engine) -> None:
    """Compares blocks as wide as the plan makes them with single steps, bit for bit.

    Args:
        engine: The model with its plan.

    Raises:
        UsageError: They differ, so that speculation may change a token where two are nearly tied.
    """
    rows = engine.plan.max_draft_tokens + 1
    limit = engine.target.max_positions
    starts = [start for start in STARTS if limit is None or start + rows <= limit]
    worst = max((d for start in starts for d in differences(engine.target, start=start, rows=rows)), default=0.0)
    if worst > 0:
        target = engine.target
        message = (
            f"Exact decoding was asked for, and a block of {rows} rows differs from single steps by up to {worst:.2g} "
            f"in a logit of {type(target.model).__name__} in {str(target.dtype).removeprefix('torch.')} here. Leave "
            "exact out, use float32, or draft fewer tokens."
        )
        raise UsageError(message)


def differences(target: Target, *, start: int, rows: int) -> Iterator[float]:
    """Largest difference of a logit between a row of a block and the same row alone, for every row.

    Args:
        target: The model.
        start: Position of the block.
        rows: Its width.
    """
    vocab = target.model.get_input_embeddings().num_embeddings
    ids = (torch.arange(start + rows, device=target.device) * 7919 + 11) % vocab
    cache = target.new_cache(capacity=start + rows)
    target.logits(ids[:start], cache, start=0, keep=1)
    block = target.logits(ids[start:], cache, start=start)
    for row, wanted in enumerate(block):
        alone = target.logits(ids[start + row : start + row + 1], cache, start=start + row)[0]
        yield float((alone.float() - wanted.float()).abs().max())
