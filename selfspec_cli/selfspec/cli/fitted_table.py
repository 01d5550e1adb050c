"""A table for a terminal of any width: on its side or as a list where columns would break words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, ConsoleOptions, RenderResult

_GAP = 2
"""Columns between two cells."""
_EDGES = 2


@dataclass(frozen=True)
class fitted:
    """A table that keeps words whole.

    Attributes:
        titles: Headings.
        rows: Cells by row.
        is_text: Which columns are aligned to the left.
    """

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    is_text: Sequence[bool]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Chooses among the table, the table on its side, and a list."""
        turned = [list(row) for row in zip(self.titles, *self.rows, strict=True)]
        if (widths := _widths(self.titles, self.rows, self.is_text, options.max_width)) is not None:
            yield _table(self.titles, self.rows, self.is_text, widths)
            return
        first, rest = turned[0], turned[1:]
        left = [True, *(False for _ in self.rows)]
        if self.rows and (widths := _widths(first, rest, left, options.max_width)) is not None:
            yield _table(first, rest, left, widths)
        else:
            yield _list(self.titles, self.rows)


def _widths(
    titles: Sequence[str], rows: Sequence[Sequence[str]], is_text: Sequence[bool], space: int
) -> list[int] | None:
    """Widths at which words of titles and texts and whole numbers fit beside each other, or None; spare is used up."""
    columns = list(zip(titles, *rows, strict=True))
    whole = [max(map(cell_len, column)) for column in columns]
    widths = [_least(column, is_text=left) for column, left in zip(columns, is_text, strict=True)]
    spare = space - sum(widths) - _GAP * (len(widths) - 1) - _EDGES
    if spare < 0:
        return None
    for index in sorted(range(len(widths)), key=lambda index: whole[index] - widths[index]):
        more = min(spare, whole[index] - widths[index])
        widths[index] += more
        spare -= more
    return widths


def _least(column: Sequence[str], *, is_text: bool) -> int:
    title, *cells = column
    words = [word for text in (title, *(cells if is_text else ())) for word in text.split()]
    return max(map(cell_len, [*words, *([] if is_text else cells)]), default=0)


def _table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], is_text: Sequence[bool], widths: Sequence[int]
) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for title, left, width in zip(titles, is_text, widths, strict=True):
        table.add_column(Text(title), justify="left" if left else "right", overflow="fold", width=width)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _list(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Text:
    """One paragraph a row: its first cells, and what the others are."""
    paragraphs = []
    for row in rows:
        named = [f"{title} {cell}" if title else cell for title, cell in zip(titles, row, strict=True) if cell]
        paragraphs.append(", ".join(named))
    return Text("\n".join(["", *paragraphs, ""]))
