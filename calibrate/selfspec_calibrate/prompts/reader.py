"""Reading a prompt file: rows in, prompts out, and everything that was left out or changed counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from selfspec_calibrate.prompts.conversation import Skip
from selfspec_calibrate.prompts.json_rows import json_rows, starts_with_json_line
from selfspec_calibrate.prompts.place import Row
from selfspec_calibrate.prompts.prompt import Prompt, prompt_id
from selfspec_calibrate.prompts.shaped import Shaped
from selfspec_calibrate.prompts.shapes import has_shape, row_kind, shape_row
from selfspec_calibrate.prompts.source import PROMPT_SUFFIXES, Source, read_source
from selfspec_calibrate.prompts.table_rows import table_rows, text_rows
from selfspec_calibrate.prompts.wrapper import open_wrapper
from selfspec_runtime.errors import PromptFileError

BAD_LINE = "bad line"
DUPLICATE = "duplicate"

_MAX_LISTED = 5

_RowReader = Callable[[Source], Iterator[Row | PromptFileError]]


@dataclass(frozen=True)
class PromptFile:
    """What a prompt file holds.

    Args:
        path: The file, as the user named it.
        sha256: SHA-256 sum of the file as it lies on disk, in hexadecimal.
        prompts: The usable prompts in the order of the file, each content once unless duplicates were asked for.
        skipped: How many rows were left out, by reason.
        shapes: How many prompts were recognised as each shape.
        normalised: How many prompts were changed, by what was changed.
        left_out: Every row that was left out, as its place and the reason.
    """

    path: Path
    sha256: str
    prompts: tuple[Prompt, ...]
    skipped: Mapping[str, int]
    shapes: Mapping[str, int]
    normalised: Mapping[str, int]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Tally:
    keeps_duplicates: bool = False
    prompts: list[Prompt] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    errors: list[PromptFileError] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    shapes: Counter[str] = field(default_factory=Counter)
    normalised: Counter[str] = field(default_factory=Counter)
    left_out: list[str] = field(default_factory=list)

    def leave_out(self, row: Row, reason: str) -> None:
        self.skipped[reason] += 1
        self.left_out.append(f"{row.place}: {reason}")

    def leave_broken(self, error: PromptFileError) -> None:
        self.errors.append(error)
        self.skipped[BAD_LINE] += 1
        self.left_out.append(str(error))


def read_prompts(
    path: Path, *, prompt_field: str | None = None, skip_bad_lines: bool = False, keep_duplicates: bool = False
) -> PromptFile:
    """Read the prompts of a file.

    Reads JSON lines, JSON arrays and objects, CSV, TSV, and text with one prompt per line, also packed with
    gzip or in UTF-16.

    Args:
        path: The file.
        prompt_field: The field that holds the prompt, for rows of no known shape.
        skip_bad_lines: Leave out and count the rows that are broken, in place of stopping.
        keep_duplicates: Give equal prompts as often as they stand in the file, for answers to all of its rows.

    Returns:
        The prompts, with counts of what was skipped and changed.

    Raises:
        PromptFileError: The file cannot be read, a row is broken, or no prompt is left.
    """
    source = read_source(path)
    tally = _Tally(keeps_duplicates=keep_duplicates)
    for row in _rows_of(source, prompt_field):
        _count(row, tally, prompt_field)
    if tally.errors and not (skip_bad_lines and tally.prompts):
        raise PromptFileError(_bad_lines(tally.errors))
    if not tally.prompts:
        skipped = _counts(tally.skipped)
        raise PromptFileError(f"{path}: no row is a usable prompt ({skipped}). Add text prompts.")
    return PromptFile(
        path=path,
        sha256=source.sha256,
        prompts=tuple(tally.prompts),
        skipped=MappingProxyType(dict(tally.skipped)),
        shapes=MappingProxyType(dict(tally.shapes)),
        normalised=MappingProxyType(dict(tally.normalised)),
        left_out=tuple(tally.left_out),
    )


def _rows_of(source: Source, prompt_field: str | None) -> list[Row | PromptFileError]:
    rows = list(_row_reader(source)(source))
    if len(rows) == 1 and isinstance(rows[0], Row) and not has_shape(rows[0], prompt_field=prompt_field):
        return list(open_wrapper(rows[0]))
    return rows


def _row_reader(source: Source) -> _RowReader:
    first = source.data.lstrip()[:1]
    if source.suffix in (".csv", ".tsv"):
        return table_rows
    if source.suffix == ".txt":
        return json_rows if first == b"{" and starts_with_json_line(source) else text_rows
    if source.suffix.startswith((".json", ".ndjson")) or first in (b"{", b"[", b'"'):
        return json_rows
    known = ", ".join(PROMPT_SUFFIXES)
    raise PromptFileError(f"{source.path}: the format is not known. Let the name end in one of {known}.")


def _count(row: Row | PromptFileError, tally: _Tally, prompt_field: str | None) -> None:
    try:
        if isinstance(row, PromptFileError):
            raise row
        shaped = shape_row(row, prompt_field=prompt_field)
    except PromptFileError as error:
        tally.leave_broken(error)
        return
    if isinstance(shaped, Skip):
        tally.leave_out(row, shaped.reason)
        return
    prompt = _prompt(row, shaped)
    if prompt.id in tally.ids and not tally.keeps_duplicates:
        tally.leave_out(row, DUPLICATE)
        return
    tally.prompts.append(prompt)
    tally.ids.add(prompt.id)
    tally.shapes[shaped.shape] += 1
    tally.normalised.update(shaped.notes)


def _prompt(row: Row, shaped: Shaped) -> Prompt:
    return Prompt(
        id=prompt_id(messages=shaped.messages, text=shaped.text),
        kind=row_kind(row, shaped),
        messages=shaped.messages,
        text=shaped.text,
        line=row.place.line,
        shape=shaped.shape,
    )


def _bad_lines(errors: list[PromptFileError]) -> str:
    listed = [str(error) for error in errors[:_MAX_LISTED]]
    if len(errors) > _MAX_LISTED:
        listed.append(f"... and {len(errors) - _MAX_LISTED} more bad rows.")
    listed.append("To leave bad rows out and count them, pass --skip-bad-lines.")
    return "\n".join(listed)


def _counts(skipped: Counter[str]) -> str:
    return ", ".join(f"{reason}: {count}" for reason, count in skipped.items()) or "there is none"
