"""Prompt lookup: what followed the same n-gram before (Saxena 2023; Yang et al. 2304.04487)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from selfspec_runtime.drafts.draft import Draft
from selfspec_runtime.drafts.source import DraftSource, RoundContext, SourceSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from selfspec_runtime.target import Target


class NgramIndex:
    """Finds the latest earlier occurrence of the text's last n-gram.

    Args:
        min_match: Shortest n-gram to look up.
        max_match: Longest n-gram to look up; longer ones are tried first.
    """

    def __init__(self, min_match: int, max_match: int) -> None:
        self.min_match, self.max_match = min_match, max_match
        self._ids: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}
        self._followed: list[int] | None = None

    def extend_to(self, ids: list[int]) -> None:
        """Takes the text in; an n-gram is indexed once a token follows it, so it never finds itself."""
        if not self._goes_on_with(ids):
            self._ids, self._after = [], {}
        for position in range(max(len(self._ids), 1), len(ids)):
            for length in range(self.min_match, min(self.max_match, position) + 1):
                self._after[tuple(ids[position - length : position])] = position
        self._ids.extend(ids[len(self._ids) :])
        self._followed = ids

    def _goes_on_with(self, ids: list[int]) -> bool:
        """A text that grows is the same list from round to round, and need not be compared as a whole."""
        known = len(self._ids)
        if ids is self._followed and len(ids) >= known:
            return True
        return ids[:known] == self._ids

    def continuation(self, max_tokens: int) -> list[int]:
        """What followed the longest match, at most ``max_tokens`` ids; empty if nothing matches."""
        for length in range(min(self.max_match, len(self._ids)), self.min_match - 1, -1):
            position = self._after.get(tuple(self._ids[-length:]))
            if position is not None:
                return self._ids[position : position + max_tokens]
        return []

    def continuation_after(self, extra: list[int], max_tokens: int) -> list[int]:
        """What :meth:`continuation` would return if these ids followed the text, which is left as it is."""
        known = len(self._ids)
        tail = self._ids[max(known - self.max_match, 0) :] + extra
        offset = known + len(extra) - len(tail)
        newer: dict[tuple[int, ...], int] = {}
        for position in range(max(known, 1), known + len(extra)):
            for length in range(self.min_match, min(self.max_match, position) + 1):
                newer[tuple(tail[position - offset - length : position - offset])] = position
        for length in range(min(self.max_match, len(tail)), self.min_match - 1, -1):
            last_ids = tuple(tail[-length:])
            found = newer.get(last_ids, self._after.get(last_ids))
            if found is not None:
                return (self._ids[found : found + max_tokens] + extra[max(found - known, 0) :])[:max_tokens]
        return []


class NgramSource(DraftSource):
    """Drafts by lookup; costs no pass.

    Args:
        min_match: Shortest n-gram to look up.
        max_match: Longest n-gram to look up.
        num_draft_tokens: Own limit, or None for the controller's.
    """

    origin = "ngram"

    def __init__(self, min_match: int, max_match: int, num_draft_tokens: int | None = None) -> None:
        self.min_match, self.max_match = min_match, max_match
        self.num_draft_tokens = num_draft_tokens
        self._index = NgramIndex(min_match, max_match)

    def propose(self, context: RoundContext) -> Draft:
        """Looks the last tokens up."""
        self._index.extend_to(context.sequence.ids)
        budget = context.budget if self.num_draft_tokens is None else min(context.room, self.num_draft_tokens)
        ids = self._index.continuation(budget)
        return Draft(token_ids=ids, probs=[None] * len(ids), origin="ngram")

    def lookahead(self) -> NgramIndex:
        """A new, empty index with the same bounds."""
        return NgramIndex(self.min_match, self.max_match)

    def reset(self) -> None:
        """Forgets the text."""
        self._index = NgramIndex(self.min_match, self.max_match)


class NgramSpec(SourceSpec):
    """Plan entry for prompt lookup."""

    kind: Literal["ngram"] = "ngram"
    min_match: int = Field(default=1, ge=1, le=16)
    max_match: int = Field(default=3, ge=1, le=16)
    num_draft_tokens: int | None = Field(default=None, ge=1, le=64)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_match > self.max_match:
            message = f"min_match {self.min_match} is larger than max_match {self.max_match}"
            raise ValueError(message)
        return self

    def build(self, target: Target, arrays: Mapping[str, Tensor]) -> NgramSource:
        """Makes the source."""
        del target, arrays
        return NgramSource(self.min_match, self.max_match, self.num_draft_tokens)

    def validate_for(self, num_layers: int) -> None:
        """Any model will do."""

    def describe(self) -> str:
        """For example ``n-gram 1-3``."""
        limit = f", {self.num_draft_tokens} drafts" if self.num_draft_tokens else ""
        return f"n-gram {self.min_match}-{self.max_match}{limit}"
