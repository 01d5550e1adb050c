"""The shape of a drafted tree, and where it stands in the cache (Miao et al. 2305.09781; Xia et al. 2410.06916)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class TokenTree:
    """Rows of one pass, each of which continues an earlier one.

    Attributes:
        parents: For each row the row before it in its text; -1 for row 0, the last committed token.
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        """Checks that every row but the first follows an earlier one."""
        first, *rest = self.parents
        follows = all(0 <= parent < row for row, parent in enumerate(rest, start=1))
        assert first == -1, "row 0 follows what is committed"
        assert follows, "every other row follows an earlier one"

    @classmethod
    def caterpillar(cls, chain_length: int, branch_places: Sequence[int]) -> TokenTree:
        """A chain with side branches of one token each.

        Args:
            chain_length: Draft tokens in the chain, rows ``1 .. chain_length``.
            branch_places: For each further row the index of the chain token that it would stand in for.
        """
        return cls((*range(-1, chain_length), *branch_places))

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.parents)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """How many rows stand before each in its text, 0 for row 0."""
        return tuple(len(path) - 1 for path in self.paths)

    @cached_property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """For each row the rows from row 0 to it, both included."""
        found: list[tuple[int, ...]] = []
        for row, parent in enumerate(self.parents):
            found.append((*(found[parent] if parent >= 0 else ()), row))
        return tuple(found)


@dataclass(frozen=True)
class PlacedTree:
    """A tree whose row ``i`` is written into slot ``start + i`` of the cache.

    Attributes:
        tree: The shape.
        start: Slot of row 0, which is its position too; row ``i`` has the position ``start + depths[i]``.
    """

    tree: TokenTree
    start: int

    def slots_to(self, row: int) -> list[int]:
        """The slots from row 0 to a row, in the order of their text."""
        return [self.start + each for each in self.tree.paths[row]]
