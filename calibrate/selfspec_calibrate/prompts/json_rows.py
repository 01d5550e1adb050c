"""Rows of JSON text: one value per line, an array, a wrapper object, or values one after another."""

from __future__ import annotations

from collections.abc import Iterator

from selfspec_calibrate.prompts.json_text import CORRECT, parse_at, parse_json, skip_space
from selfspec_calibrate.prompts.place import Row
from selfspec_calibrate.prompts.source import Source, decode_utf8
from selfspec_runtime.errors import PromptFileError

_LINE_SUFFIXES = (".jsonl", ".ndjson", ".jsonlines")


def json_rows(source: Source) -> Iterator[Row | PromptFileError]:
    """Split a JSON file into rows; what it holds decides, not how it is named.

    Args:
        source: The file's text.

    Yields:
        A row, or the error of a line that is not valid JSON.

    Raises:
        PromptFileError: A text of several lines is broken, so that no line can be left out.
    """
    lines = source.lines()
    if len(lines) > 1 and starts_with_json_line(source):
        yield from _line_rows(lines, source)
        return
    try:
        yield from _document_rows(source)
    except PromptFileError:
        if not _is_line_oriented(lines, source):
            raise
        yield from _line_rows(lines, source)


def starts_with_json_line(source: Source) -> bool:
    """Tell whether the first line that is not blank is a JSON value by itself."""
    return _is_json(source.lines()[0], source)


def _is_json(line: tuple[int, bytes], source: Source) -> bool:
    try:
        parse_json(decode_utf8(line[1], source.place(line[0])), source.place(line[0]))
    except PromptFileError:
        return False
    return True


def _is_line_oriented(lines: list[tuple[int, bytes]], source: Source) -> bool:
    """Tell JSON lines whose first line is broken from one broken text of many lines."""
    if len(lines) == 1:
        return True
    if lines[0][1].strip() in (b"[", b"{"):
        return False
    return source.suffix in _LINE_SUFFIXES or _is_json(lines[1], source)


def _line_rows(lines: list[tuple[int, bytes]], source: Source) -> Iterator[Row | PromptFileError]:
    for number, line in lines:
        place = source.place(number)
        try:
            yield Row(place, parse_json(decode_utf8(line, place), place))
        except PromptFileError as error:
            yield error


def _document_rows(source: Source) -> list[Row]:
    text = source.text()
    lines = _LineCounter(text)
    rows: list[Row] = []
    position = skip_space(text, 0)
    while position < len(text):
        if text[position] == "[":
            found, position = _array_rows(text, position, lines, source)
        else:
            place = source.place(lines.line_at(position))
            value, position = parse_at(text, position, place)
            found = [Row(place, value)]
        rows.extend(found)
        position = skip_space(text, position)
    return rows


def _array_rows(text: str, start: int, lines: _LineCounter, source: Source) -> tuple[list[Row], int]:
    rows: list[Row] = []
    first_line = lines.line_at(start)
    position = skip_space(text, start + 1)
    while text[position : position + 1] != "]":
        place = source.place(lines.line_at(position), len(rows) + 1)
        value, end = parse_at(text, position, place)
        rows.append(Row(place, value))
        position = skip_space(text, end)
        if text[position : position + 1] == ",":
            position = skip_space(text, position + 1)
        elif text[position : position + 1] != "]":
            raise place.error("not valid JSON: after it, a comma or a closing bracket is missing", CORRECT)
    if rows and all(_is_turn(row.value) for row in rows):
        rows = [Row(source.place(first_line), [row.value for row in rows])]
    return rows, position + 1


def _is_turn(value: object) -> bool:
    """Tell whether an array's element is a turn, so that the array is one conversation and not a file."""
    return isinstance(value, dict) and ("role" in value or "from" in value)


class _LineCounter:
    """Turns growing positions into line numbers while counting each line break once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._line = 1

    def line_at(self, position: int) -> int:
        self._line += self._text.count("\n", self._position, position)
        self._position = position
        return self._line
