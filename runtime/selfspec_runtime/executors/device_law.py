"""From logits to laws and tokens without a host read; the formulas are those of :mod:`selfspec_runtime.law`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from selfspec_runtime.law import filtered

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec_runtime.sampling import SamplingSettings


def device_law(logits: Tensor, settings: SamplingSettings) -> Tensor:
    """The law that the settings make of each row.

    Args:
        logits: ``[n, vocab]`` in any floating dtype.
        settings: Not greedy.

    Returns:
        float32 ``[n, vocab]``. A row that is not numbers becomes uniform, as for a draft; for a target
        :func:`not_numbers` says so.
    """
    scores = logits.float() / settings.temperature
    broken = ~scores.amax(dim=-1, keepdim=True).isfinite()
    law = filtered(scores.masked_fill(broken, 0.0), settings).softmax(dim=-1)
    return law.masked_fill(broken, 1.0 / logits.shape[-1])


def not_numbers(logits: Tensor) -> Tensor:
    """Whether each row has a NaN, a +inf, or nothing but -inf; ``[n]`` bool."""
    return ~logits.float().amax(dim=-1).isfinite()


def sample_tokens(law: Tensor, noise: Tensor) -> Tensor:
    """Draws from each row by inverting its cumulative distribution.

    Args:
        law: ``[n, vocab]``, not negative.
        noise: ``[n]`` float64, uniform in (0, 1).

    Returns:
        int64 ``[n]``; never a token of probability 0.
    """
    cumulative = law.cumsum(dim=-1, dtype=torch.float64)
    threshold = noise[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, threshold, right=True)
    ids = torch.arange(law.shape[-1], device=law.device)
    last = torch.where(law > 0, ids, 0).amax(dim=-1, keepdim=True)
    return torch.minimum(tokens, last)[:, 0]
