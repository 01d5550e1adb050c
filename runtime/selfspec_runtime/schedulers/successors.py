"""Which tokens followed the last ones before: candidates for the token that ends a verification."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

LONGEST = 2


class SuccessorCounts:
    """Counts what followed each token and each pair of tokens in a text."""

    def __init__(self) -> None:
        self._length = 0
        self._after: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)

    def extend_to(self, ids: Sequence[int]) -> None:
        """Takes in what was added to the text since the last call; texts only grow."""
        for position in range(self._length, len(ids)):
            for length in range(min(LONGEST, position) + 1):
                self._after[tuple(ids[position - length : position])][ids[position]] += 1
        self._length = len(ids)

    def likeliest(self, last_ids: Sequence[int], number: int, *, first: int | None = None) -> list[int]:
        """Distinct tokens, likeliest first: after the last two tokens, after the last one, anywhere.

        Args:
            last_ids: What they would follow.
            number: Most tokens to return.
            first: A token that is likelier than any that was counted.
        """
        found = {} if first is None else {first: None}
        for length in range(min(LONGEST, len(last_ids)), -1, -1):
            if len(found) >= number:
                break
            counts = self._after.get(tuple(last_ids[len(last_ids) - length :]), Counter())
            found |= dict.fromkeys(token for token, _ in counts.most_common(number + len(found)))
        return list(found)[:number]
