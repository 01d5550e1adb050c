"""Listens to a draft source while it drafts: how likely its own law made each token."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from selfspec_runtime.drafts.source import DraftSource
from selfspec_runtime.rules import AcceptanceRule

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec_runtime.acceptance import Verdict
    from selfspec_runtime.drafts.draft import Draft
    from selfspec_runtime.drafts.overhead import Overhead
    from selfspec_runtime.drafts.source import RoundContext
    from selfspec_runtime.rules import Choice
    from selfspec_runtime.sequence import Sequence


class WatchedSource(DraftSource):
    """Another source, with the probabilities of its last draft kept.

    Args:
        source: What drafts.

    Attributes:
        probs: For each token of the last draft, side branches last, its probability at temperature 1, before any
            processor; None for a token that no law stands behind (looked up) or whose law is not a number.
    """

    def __init__(self, source: DraftSource) -> None:
        self._source = source
        self.probs: tuple[float | None, ...] = ()

    @property
    def extra_bytes(self) -> int:
        """What the source holds."""
        return self._source.extra_bytes

    @property
    def overhead(self) -> Overhead:
        """What the source spends."""
        return self._source.overhead

    def propose(self, context: RoundContext) -> Draft:
        """Drafts as the source does."""
        rule = _WatchedRule(context.rule)
        draft = self._source.propose(replace(context, rule=rule))
        chain = (rule.prob_of(place, token) for place, token in enumerate(draft.token_ids))
        self.probs = (*chain, *(branch.prob for branch in draft.branches))
        return draft

    def observe(self, draft: Draft, *, num_accepted: int) -> None:
        """Passes the outcome on."""
        self._source.observe(draft, num_accepted=num_accepted)

    def reset(self) -> None:
        """Passes it on."""
        self._source.reset()


class _WatchedRule(AcceptanceRule):
    """Another rule, noting what it chose; the choice itself is untouched."""

    def __init__(self, rule: AcceptanceRule) -> None:
        super().__init__(rule.settings, rule.processors)
        self._rule = rule
        self._noted: dict[int, tuple[int, float]] = {}

    def prob_of(self, place: int, token_id: int) -> float | None:
        chosen, prob = self._noted.get(place, (None, math.nan))
        return prob if chosen == token_id and math.isfinite(prob) else None

    def choose(
        self, logits: Tensor, sequence: Sequence, drafted: list[int], *, wants_confidence: bool = False
    ) -> Choice:
        """Chooses as the rule does."""
        choice = self._rule.choose(logits, sequence, drafted, wants_confidence=wants_confidence)
        self._noted[len(drafted)] = choice.token_id, float(logits[0].float().softmax(dim=-1)[choice.token_id])
        return choice

    def decide(self, draft: Draft, logits: Tensor, sequence: Sequence) -> Verdict:
        """Decides as the rule does."""
        return self._rule.decide(draft, logits, sequence)

    def _scores(self, logits: Tensor, position: int) -> Tensor:
        return self._rule._scores(logits, position)

    def _draw(self, logits: Tensor, position: int, *, round_start: int) -> tuple[int, Tensor | None]:
        return self._rule._draw(logits, position, round_start=round_start)

    def _decide(self, draft: Draft, logits: Tensor, position: int) -> Verdict:
        return self._rule._decide(draft, logits, position)
