"""Drafts that are ready for some outcomes of one verification."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec_runtime.drafts.draft import Draft


@dataclass(frozen=True)
class PreparedDraft:
    """A draft for one outcome.

    Attributes:
        draft: What would follow.
        ready_s: Seconds from the start of the verification until it was ready.
    """

    draft: Draft
    ready_s: float


@dataclass
class PreparedOutcomes:
    """What was prepared during one verification.

    An outcome is known by the whole text that it leads to, so that a draft is never taken for another one, however
    many rounds ago it was prepared.

    Attributes:
        text: Committed token ids when the verification began.
    """

    text: tuple[int, ...]
    _drafts: dict[tuple[int, ...], PreparedDraft] = field(default_factory=dict)

    def __len__(self) -> int:
        """Number of outcomes that something is ready for."""
        return len(self._drafts)

    def add(self, committed: Sequence[int], prepared: PreparedDraft) -> None:
        """Keeps a draft.

        Args:
            committed: Tokens that the verification commits in this outcome.
            prepared: What follows them.
        """
        self._drafts[tuple(committed)] = prepared

    def take(self, ids: Sequence[int]) -> PreparedDraft | None:
        """The draft for a text, or None if its outcome was not prepared for."""
        start = len(self.text)
        if tuple(ids[:start]) != self.text:
            return None
        return self._drafts.get(tuple(ids[start:]))
