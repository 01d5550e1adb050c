"""The target's law at scored rows, sparse, and how often a draft's token would be accepted under it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from selfspec_runtime.law import argmax_tokens, token_probs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from selfspec_runtime.law import Warper
    from selfspec_runtime.sampling import SamplingSettings

NUM_KEPT = 1024
"""Likeliest tokens kept of a row's law: 12 KB a row instead of 600 KB for a vocabulary of 150,000."""


@dataclass(frozen=True)
class TargetLaw:
    """The likeliest tokens of each row.

    What lies beyond them counts as never accepted: acceptance is understated by at most that mass, in match mode
    by at most twice as much.

    Attributes:
        ids: int64 ``[n, k]``; under greedy decoding ``k`` is 1, the token that the trace holds next.
        probs: float32 ``[n, k]``.
    """

    ids: Tensor
    probs: Tensor

    @classmethod
    def greedy(cls, next_ids: Tensor) -> TargetLaw:
        """All mass on the trace's own next token; int64 ``[n]``."""
        return cls(next_ids[:, None], torch.ones(next_ids.shape[0], 1, device=next_ids.device))

    @classmethod
    def sampled(cls, logits: Tensor, sampling: SamplingSettings, *, warpers: Sequence[Warper] = ()) -> TargetLaw:
        """The law that the settings make of logits ``[n, vocab]``.

        Raises:
            NumericalError: A row is not numbers.
        """
        probs = token_probs(logits, sampling, warpers=warpers)
        kept, ids = probs.topk(min(NUM_KEPT, probs.shape[1]), dim=1)
        return cls(ids, kept)

    def acceptance(self, draft_logits: Tensor, sampling: SamplingSettings, *, warpers: Sequence[Warper] = ()) -> Tensor:
        """The probability that the token which a draft proposes at each row is accepted.

        Args:
            draft_logits: ``[n, vocab]``, after history-dependent processors.
            sampling: How tokens are chosen.
            warpers: Further filters of the law.

        Returns:
            float32 ``[n]``. Greedy: whether the draft's likeliest token is the target's next. Rejection
            sampling: the overlap of the laws, sum of min(target, draft) (Leviathan et al. 2211.17192). Match
            mode: the probability that both choose the same token from one Gumbel noise.
        """
        if sampling.greedy:
            return (argmax_tokens(draft_logits) == self.ids[:, 0]).float()
        law = token_probs(draft_logits, sampling, degenerate="uniform_reject", warpers=warpers)
        draft_probs = law.gather(1, self.ids)
        if sampling.mode == "match":
            return shared_noise_match(self.probs, draft_probs)
        return torch.minimum(self.probs, draft_probs).sum(dim=1).clamp(max=1.0)


def shared_noise_match(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """How probably two laws choose the same token by the Gumbel-max rule with the same noise.

    Token i wins under both laws with probability 1 / sum_j max(target_j / target_i, draft_j / draft_i): the
    minimum of independent exponential variables of those rates. Sorting tokens by target / draft turns the sums
    into prefix sums. Mass outside of the columns counts against a match.

    Args:
        target_probs: float32 ``[n, k]``.
        draft_probs: float32 ``[n, k]``, of the same tokens.

    Returns:
        float32 ``[n]``.
    """
    target, draft = target_probs.double(), draft_probs.double()
    ratio = torch.where(draft > 0, target / draft, torch.inf)
    order = ratio.argsort(dim=1, descending=True)
    target, draft = target.gather(1, order), draft.gather(1, order)
    # Tokens up to i in this order weigh more under the target, relative to i; those behind it under the draft.
    target_mass = target.cumsum(dim=1) + (1 - target.sum(dim=1, keepdim=True)).clamp(min=0)
    draft_mass = (1 - draft.cumsum(dim=1)).clamp(min=0)
    both = (target > 0) & (draft > 0)
    rate = target_mass / target + draft_mass / draft
    return torch.where(both, 1 / rate, 0.0).sum(dim=1).clamp(max=1.0).float()
