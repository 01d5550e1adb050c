"""What a command says: results on stdout, everything else on stderr, and never markup in a model's text."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDE = 200
"""Columns of a table that is not written to a terminal, so that a pipe gets whole cells."""

# What a terminal would act on: a model may write escape sequences, and nobody may let it move the cursor, or turn round
# the direction in which a line is read.
_DIRECTIONS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_CONTROLS = {
    **{code: f"\\x{code:02x}" for code in (*range(32), 127, *range(128, 160)) if chr(code) not in "\n\t"},
    **{code: f"\\u{code:04x}" for code in _DIRECTIONS},
}


def console(*, stderr: bool = False) -> Console:
    """A console on the stream as it is now; colours follow NO_COLOR, FORCE_COLOR and TERM."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else WIDE
    return Console(file=stream, markup=False, highlight=False, emoji=False, width=width)


class Terminal:
    """Where a command writes.

    Args:
        quiet: Leave out notices and progress.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet

    @property
    def is_interactive(self) -> bool:
        """Whether somebody sits at both ends."""
        return sys.stdin.isatty() and sys.stdout.isatty()

    def result(self, text: str) -> None:
        """Writes a line of results as it is."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def show(self, renderable: RenderableType) -> None:
        """Writes a table to stdout."""
        console().print(renderable)

    def piece(self, text: str) -> None:
        """Writes a piece of a model's text at once; a terminal gets no control characters of it."""
        sys.stdout.write(visible(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()

    def notice(self, text: str) -> None:
        """Says something that the user should know, on stderr."""
        if not self.quiet:
            console(stderr=True).print(Text(visible(text), style="dim"), soft_wrap=True)

    def error(self, text: str) -> None:
        """Says what went wrong, on stderr."""
        console(stderr=True).print(Text.assemble(("Error: ", "bold red"), visible(text)), soft_wrap=True)


def visible(text: str) -> str:
    """Text with control characters and turns of direction written out, line breaks and tabs excepted."""
    return text.translate(_CONTROLS)
