"""What ``selfspec generate`` is to answer: one prompt, or all rows of a file."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfspec.cli.option_values import read_text
from selfspec.cli.row_options import row_notices
from selfspec.cli.streams import read_stdin
from selfspec_runtime.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from selfspec.cli.row_options import RowOptions
    from selfspec.prompt_ids import PromptLike

PROMPT_FILE_SUFFIXES = (".jsonl", ".json", ".ndjson", ".csv", ".tsv", ".gz")


@dataclass(frozen=True)
class AskedPrompt:
    """A prompt.

    Attributes:
        content: Its text or its messages.
        is_raw: Whether it is to be taken as it is.
        place: ``file:line`` where it is one of many.
        line: The line alone.
    """

    content: PromptLike
    is_raw: bool = False
    place: str | None = None
    line: int | None = None


def asked_prompts(
    prompt: str | None, file: Path | None, rows: RowOptions
) -> tuple[tuple[AskedPrompt, ...], tuple[str, ...]]:
    """The prompts, and what is to be known of the file's other rows.

    Args:
        prompt: Given on the command line; ``-`` is stdin.
        file: A text file, or one of many prompts.
        rows: How rows are read.

    Raises:
        UsageError: There is no prompt, there are two, or options are given for rows where there are none.
    """
    if prompt is not None and file is not None:
        message = "--prompt and --file are both given. Give one."
        raise UsageError(message)
    if file is not None and file.suffix.lower() in PROMPT_FILE_SUFFIXES:
        return _of_rows(file, rows)
    if rows.given is not None:
        message = f"{rows.given} is about rows: it goes with --file and a .jsonl, .json or .csv file."
        raise UsageError(message)
    return (AskedPrompt(_one(prompt, file)),), ()


def _of_rows(file: Path, rows: RowOptions) -> tuple[tuple[AskedPrompt, ...], tuple[str, ...]]:
    read = rows.read(file, keep_duplicates=True)
    asked = tuple(
        AskedPrompt(
            prompt.messages or prompt.text or "",
            is_raw=prompt.messages is None,
            place=f"{file}:{prompt.line}",
            line=prompt.line,
        )
        for prompt in read.prompts
    )
    return asked, row_notices(read)


def _one(prompt: str | None, file: Path | None) -> str:
    if file is not None:
        return read_text(file, "--file")
    if prompt is not None and prompt != "-":
        return prompt
    if prompt is None and sys.stdin.isatty():
        message = "There is no prompt. Give --prompt TEXT or --file FILE, or pipe text in."
        raise UsageError(message)
    text = read_stdin()
    if not text:
        message = "The prompt is empty: stdin held nothing. Pipe text in, or give --prompt or --file."
        raise UsageError(message)
    return text
