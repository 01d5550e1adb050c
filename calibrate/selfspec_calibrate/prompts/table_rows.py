"""Rows of tables and of plain text."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager

from selfspec_calibrate.prompts.place import Place, Row
from selfspec_calibrate.prompts.source import Source, decode_utf8
from selfspec_runtime.errors import PromptFileError

_Record = tuple[Place, list[str] | PromptFileError]


def text_rows(source: Source) -> Iterator[Row | PromptFileError]:
    """Read one prompt per line.

    Args:
        source: The file's text.

    Yields:
        A row whose value is the line, or the error of a line that is not UTF-8.
    """
    for number, line in source.lines():
        place = source.place(number)
        try:
            yield Row(place, decode_utf8(line, place).removesuffix("\r"))
        except PromptFileError as error:
            yield error


def table_rows(source: Source) -> Iterator[Row | PromptFileError]:
    """Read a table whose first row names the columns. Every cell stays text: ``NA`` and ``00123`` too.

    Args:
        source: The file's text, with tabs between cells in a ``.tsv``, commas or semicolons in a ``.csv``.

    Yields:
        A row with None for an empty cell, or the error of a row that is broken or too long.

    Raises:
        PromptFileError: The header names a column twice, or the file is not UTF-8.
    """
    text = source.text()
    records = _records(text, _delimiter(text, source.suffix), source)
    names = _header(next(records, None))
    for place, record in records:
        yield record if isinstance(record, PromptFileError) else _row(place, names, record)


def _header(first: _Record | None) -> list[str]:
    place, header = first or (None, [])
    if isinstance(header, PromptFileError):
        raise header
    names = [name.strip() for name in header]
    given = [name for name in names if name]
    if place is not None and len(set(given)) < len(given):
        raise place.error("two columns have the same name", "Rename one of them in the first row")
    return names


def _delimiter(text: str, suffix: str) -> str:
    if suffix == ".tsv":
        return "\t"
    header = text.lstrip().partition("\n")[0]
    return ";" if ";" in header and "," not in header else ","


def _records(text: str, delimiter: str, source: Source) -> Iterator[_Record]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    with _long_fields(len(text)):
        while True:
            place = source.place(reader.line_num + 1)
            try:
                record = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield place, place.error(f"not a valid table row ({error})", "Check the quotes of this row")
                continue
            if any(cell.strip() for cell in record):
                yield place, record


@contextmanager
def _long_fields(num_chars: int) -> Iterator[None]:
    """Let a cell be as long as the file: the csv module's limit of 131072 is for the whole process."""
    limit = csv.field_size_limit(max(num_chars, csv.field_size_limit()))
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _row(place: Place, names: list[str], record: list[str]) -> Row | PromptFileError:
    if any(cell.strip() for cell in record[len(names) :]):
        return place.error(
            f"the row has {len(record)} cells, the first row names {len(names)} columns",
            "Put quotes around a cell that holds the separator",
        )
    return Row(place, {name: cell or None for name, cell in zip(names, record, strict=False)})
