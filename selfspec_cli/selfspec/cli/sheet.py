"""Tables of results: one content, written for people, for a document, or for a program."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from selfspec.cli.console import Terminal
    from selfspec.cli.options import Format

MISSING = "–"


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column.

    Attributes:
        key: Name of the value in a row, and in JSON.
        title: Heading for people.
        write: Turns a value that is not None into text.
        is_text: Whether it is aligned to the left.
    """

    key: str
    title: str
    write: Callable[[Any], str] = str
    is_text: bool = False


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """One table.

    Attributes:
        name: Its name in JSON.
        title: One line over it.
        columns: The columns.
        rows: Values by the columns' keys; further values go into JSON only.
        notes: Sentences under it.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...] = field(default=())


def show_sheets(sheets: Sequence[Sheet], form: Format, terminal: Terminal) -> None:
    """Writes sheets to stdout in one of the formats."""
    from selfspec.cli.fitted_table import fitted

    if form == "json":
        terminal.result(as_json(sheets))
    elif form == "md":
        terminal.result("\n\n".join(as_markdown(sheet) for sheet in sheets))
    else:
        for sheet in sheets:
            terminal.result(sheet.title)
            terminal.show(fitted([column.title for column in sheet.columns], cells_of(sheet), _is_text(sheet)))
            for note in sheet.notes:
                terminal.result(note)
            terminal.result("")


def as_markdown(sheet: Sheet) -> str:
    """The sheet for a document."""
    lines = [f"**{sheet.title}**", ""]
    lines.append(_markdown_row([column.title for column in sheet.columns]))
    lines.append(_markdown_row([":--" if column.is_text else "--:" for column in sheet.columns]))
    lines.extend(_markdown_row(row_cells(sheet, row)) for row in sheet.rows)
    return "\n".join([*lines, "", *sheet.notes]).rstrip()


def as_json(sheets: Sequence[Sheet]) -> str:
    """The sheets for a program: raw numbers by name, and the notes."""
    content = {
        sheet.name: {"title": sheet.title, "rows": [dict(row) for row in sheet.rows], "notes": list(sheet.notes)}
        for sheet in sheets
    }
    return json.dumps(content, ensure_ascii=False, indent=2, allow_nan=False, default=str)


def number(digits: int, *, unit: str = "") -> Callable[[float], str]:
    """Writes a number with so many decimals."""
    return lambda value: f"{value:.{digits}f}{unit}" if math.isfinite(value) else "∞"


def percent(value: float) -> str:
    """Writes a share as a percentage."""
    return f"{value:.0%}"


def milliseconds(value: float) -> str:
    """Writes seconds as milliseconds."""
    return f"{value * 1000:.0f} ms"


def cells_of(sheet: Sheet) -> list[list[str]]:
    """All rows as text."""
    return [row_cells(sheet, row) for row in sheet.rows]


def row_cells(sheet: Sheet, row: Mapping[str, Any]) -> list[str]:
    """One row as text."""
    values = ((column, row.get(column.key)) for column in sheet.columns)
    return [MISSING if value is None else column.write(value) for column, value in values]


def _is_text(sheet: Sheet) -> list[bool]:
    return [column.is_text for column in sheet.columns]


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
