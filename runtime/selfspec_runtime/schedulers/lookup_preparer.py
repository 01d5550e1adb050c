"""Looks up drafts on the CPU while the target verifies, in an index of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from selfspec_runtime.drafts.draft import Draft
from selfspec_runtime.schedulers.preparer import Preparer, Verification
from selfspec_runtime.schedulers.successors import LONGEST, SuccessorCounts

if TYPE_CHECKING:
    from collections.abc import Callable

    from selfspec_runtime.drafts.lookahead import LooksAhead
    from selfspec_runtime.drafts.source import RoundContext


class LookupPreparer(Preparer):
    """Prepares what the lookup would draft in turn.

    Args:
        source: The lookup; only its settings are used.
        num_draft_tokens: The most tokens that a round can draft.
    """

    def __init__(self, source: LooksAhead, num_draft_tokens: int) -> None:
        self._source = source
        self.num_draft_tokens = num_draft_tokens
        self.reset()

    def reset(self) -> None:
        """Starts with an empty index."""
        self._lookahead = self._source.lookahead()
        self._successors = SuccessorCounts()
        self._last: tuple[int, ...] = ()
        self._drafted: tuple[int, ...] = ()

    def begin(self, verification: Verification) -> None:
        """Indexes what was committed since the last time."""
        text = list(verification.text)
        self._lookahead.extend_to(text)
        self._successors.extend_to(text)
        self._last, self._drafted = verification.text[-LONGEST:], verification.drafted

    def next_tokens(self, num_accepted: int, number: int) -> list[int]:
        """What the lookup would go on with, then what followed the last tokens most often."""
        accepted = list(self._drafted[:num_accepted])
        rejected = self._drafted[num_accepted : num_accepted + 1]
        ahead = self._lookahead.continuation_after(accepted, 1)
        last_ids = [*self._last, *accepted][-LONGEST:]
        likely = self._successors.likeliest(last_ids, number + 1, first=ahead[0] if ahead else None)
        return [token for token in likely if token not in rejected][:number]

    def draft_after(self, committed: tuple[int, ...], stopped: Callable[[], bool]) -> Draft:
        """The continuation, as long as any round can use it; it takes too little time to be stopped."""
        del stopped
        ids = self._lookahead.continuation_after(list(committed), self.num_draft_tokens)
        return Draft(token_ids=ids, probs=[None] * len(ids), origin=self._source.origin)

    def cut(self, draft: Draft, context: RoundContext) -> Draft:
        """Cut to the source's own limit, or to the controller's."""
        own = self._source.num_draft_tokens
        budget = context.budget if own is None else min(context.room, own)
        ids = draft.token_ids[:budget]
        return Draft(token_ids=ids, probs=[None] * len(ids), origin=draft.origin)
