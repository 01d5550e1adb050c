"""What a lookup offers so that drafts can be prepared for texts that may come."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


class Lookahead(Protocol):
    """An index of a text that can be asked about continuations of it. Not shared: it has state of its own."""

    def extend_to(self, ids: list[int]) -> None:
        """Takes the text in."""

    def continuation_after(self, extra: list[int], max_tokens: int) -> list[int]:
        """What would be drafted if these tokens followed the text, which is left as it is."""


@runtime_checkable
class LooksAhead(Protocol):
    """A draft source that drafts by looking the text up.

    Attributes:
        origin: Kind of the source, for the record.
        num_draft_tokens: The source's own limit, or None for the controller's.
    """

    origin: str
    num_draft_tokens: int | None

    def lookahead(self) -> Lookahead:
        """A new, empty index with the source's settings."""
