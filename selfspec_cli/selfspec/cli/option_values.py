"""What the values of options hold: the text of a file, a JSON object."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from selfspec_runtime.errors import UsageError


def json_object(text: str, option: str) -> dict[str, Any]:
    """Parses a JSON object that is an option's value.

    Raises:
        UsageError: It is no JSON, or no object.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        found = error
    if not isinstance(found, dict):
        message = f'{option} is {text!r:.60}. Write a JSON object: {{"name": value}}.'
        raise UsageError(message)
    return found


def text_or_file(value: str, option: str) -> str:
    """The value itself, or for ``@FILE`` what the file holds.

    Raises:
        UsageError: The file cannot be read as UTF-8 text.
    """
    return read_text(Path(value[1:]), option) if value.startswith("@") else value


def read_text(path: Path, option: str) -> str:
    """Reads a text file that an option names.

    Raises:
        UsageError: It cannot be read as UTF-8 text.
    """
    try:
        return path.expanduser().read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{option}: {path} is not UTF-8 text. Save it as UTF-8.") from error
    except OSError as error:
        raise UsageError(f"{option}: {path} cannot be read ({error.strerror}). Check the path.") from error
