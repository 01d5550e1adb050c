"""Where two greedy texts part, and how close a call it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from selfspec_runtime.processors import build_processors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from selfspec_runtime.generation import GenerationSettings
    from selfspec_runtime.target import Target


def first_divergence(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first token that differs, or None for equal texts; one text may end where the other goes on."""
    if tuple(one) == tuple(other):
        return None
    pairs = zip(one, other, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def divergence_margin(
    target: Target, prompt_ids: Sequence[int], common_ids: Sequence[int], settings: GenerationSettings
) -> float:
    """The top-two margin of the target's logits where two texts part.

    Computed in one teacher-forced pass over everything before the divergence. Kernels round differently for one row
    and for several, so a small margin says that the choice was a tie up to rounding, and a large one that something
    is wrong.

    Args:
        target: The model.
        prompt_ids: The prompt.
        common_ids: What both texts have in common.
        settings: Their processors count, since greedy decoding chooses after them.

    Returns:
        The difference between the largest and the second largest logit, at least 0.
    """
    ids = torch.tensor([*prompt_ids, *common_ids], dtype=torch.long, device=target.device)
    logits = target.logits(ids, target.new_cache(capacity=len(ids)), start=0, keep=1)
    largest = _processed(logits, ids, len(prompt_ids), settings)[0].float().topk(2).values
    return float(largest[0] - largest[1])


def _processed(logits: Tensor, ids: Tensor, prompt_length: int, settings: GenerationSettings) -> Tensor:
    if settings.processors is None:
        return logits
    processors = build_processors(
        settings.processors,
        prompt_length=prompt_length,
        eos_token_ids=settings.eos_token_ids,
        device=logits.device,
        greedy=settings.sampling.greedy,
    )
    return processors(logits, ids[None], ids[:0])
