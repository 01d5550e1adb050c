"""Where in a prompt file something stands, and the error that names the place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from selfspec_runtime.errors import PromptFileError


@dataclass(frozen=True)
class Place:
    """A line of a prompt file.

    Args:
        path: The file, as the user named it.
        line: Line number, from 1.
        item: Number of the array element, from 1, where several elements may share a line.
    """

    path: Path
    line: int
    item: int | None = None

    def __str__(self) -> str:
        at = f"{self.path}:{self.line}"
        return at if self.item is None else f"{at}: item {self.item}"

    def error(self, reason: str, remedy: str) -> PromptFileError:
        """Make the error for this place.

        Args:
            reason: What is wrong, without a full stop.
            remedy: What to do about it, without a full stop.

        Returns:
            The error, to be raised or to be collected.
        """
        return PromptFileError(f"{self}: {reason}. {remedy}.")


@dataclass(frozen=True)
class Row:
    """One row of a prompt file, before its shape is known.

    Args:
        place: Where the row starts.
        value: A JSON value; the rows of a table are objects of strings.
    """

    place: Place
    value: object
