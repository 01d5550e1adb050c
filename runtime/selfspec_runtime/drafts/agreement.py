"""How often a draft would have proposed what was said: teacher-forced, on tokens that are committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from selfspec_runtime.acceptance import shared_token
from selfspec_runtime.law import token_probs

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec_runtime.rules import AcceptanceRule
    from selfspec_runtime.sequence import Sequence


def agreement(rule: AcceptanceRule, logits: Tensor, sequence: Sequence, *, start: int) -> float:
    """Mean chance that the draft proposes the token that follows.

    Greedily, and where draft and target share their noise, the draft either proposes it or not. Where tokens are
    drawn apart it is the probability that the draft's law gives to what was said.

    Args:
        rule: How tokens are chosen; its processors see each row's own past.
        logits: ``[n, vocab]`` of the draft, after the tokens at ``start .. start + n - 1``.
        sequence: The committed tokens, more than ``start + n``.
        start: Position of the first row.

    Returns:
        0..1.
    """
    ids, count = sequence.tensor(), len(logits)
    said = ids[start + 1 : start + 1 + count]
    if not rule.processors.is_empty:
        logits = rule.processors(logits, ids[None, : start + 1], ids[start + 1 : start + count])
    if rule.settings.greedy:
        return float((logits.argmax(dim=-1) == said).float().mean())
    probs = token_probs(logits, rule.settings, degenerate="uniform_reject", warpers=rule.processors.warpers)
    if rule.settings.mode == "match":
        return float((_shared(rule, probs, first=start + 1) == said).float().mean())
    return float(probs.gather(1, said[:, None]).mean())


def _shared(rule: AcceptanceRule, probs: Tensor, *, first: int) -> Tensor:
    drawn = [shared_token(row, seed=rule.settings.seed, position=first + n) for n, row in enumerate(probs)]
    return torch.tensor(drawn, device=probs.device)
