"""How the rows of a prompt file are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from selfspec.cli.options import PROMPT

if TYPE_CHECKING:
    from pathlib import Path

    from selfspec_calibrate.prompts.reader import PromptFile

PromptFieldOption = Annotated[
    str | None, typer.Option("--prompt-field", help="Field that holds the prompt.", rich_help_panel=PROMPT)
]
SkipBadLinesOption = Annotated[
    bool, typer.Option("--skip-bad-lines", help="Leave broken rows out and go on.", rich_help_panel=PROMPT)
]

MAX_LISTED = 20
"""Rows left out that are named; of more, the number."""


@dataclass(frozen=True, kw_only=True)
class RowOptions:
    """Which field is the prompt, and what becomes of broken rows."""

    prompt_field: PromptFieldOption = None
    skip_bad_lines: SkipBadLinesOption = False

    @property
    def given(self) -> str | None:
        """The option that was given, or None."""
        if self.prompt_field is not None:
            return "--prompt-field"
        return "--skip-bad-lines" if self.skip_bad_lines else None

    def read(self, path: Path, *, keep_duplicates: bool = False) -> PromptFile:
        """Reads a prompt file so.

        Args:
            path: The file.
            keep_duplicates: Give equal prompts as often as they stand there.

        Raises:
            PromptFileError: It cannot be read.
        """
        from selfspec_calibrate.prompts.reader import read_prompts

        return read_prompts(
            path,
            prompt_field=self.prompt_field,
            skip_bad_lines=self.skip_bad_lines,
            keep_duplicates=keep_duplicates,
        )


def row_notices(file: PromptFile) -> tuple[str, ...]:
    """What was left out of a file and what was changed, one sentence each."""
    listed = [f"Left out: {row.rstrip('.')}." for row in file.left_out[:MAX_LISTED]]
    rest = len(file.left_out) - len(listed)
    if rest:
        listed.append(f"{rest} more row{'s' * (rest != 1)} of {file.path} left out.")
    changed = [
        f"{file.path}: {count} of {len(file.prompts)} prompts, {what}." for what, count in file.normalised.items()
    ]
    return (*listed, *changed)
