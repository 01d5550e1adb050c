"""The process's own streams: always there, and read as UTF-8 where no terminal says otherwise."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from selfspec_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator


def prepare_streams() -> None:
    """Makes the streams fit for any text.

    A stream that was closed (``<&-``) becomes an empty one, what a terminal cannot show is replaced, and what is piped
    in is UTF-8 whatever the locale, since a file would be read so too.
    """
    sys.stdin = sys.stdin or Path(os.devnull).open(encoding="utf-8")
    sys.stdout = sys.stdout or Path(os.devnull).open("w", encoding="utf-8")
    sys.stderr = sys.stderr or Path(os.devnull).open("w", encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        _reconfigure(stream, errors="replace")
    if not sys.stdin.isatty():
        _reconfigure(sys.stdin, encoding="utf-8-sig", errors="strict")


def read_stdin() -> str:
    """All of stdin.

    Raises:
        UsageError: It is not UTF-8.
    """
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        _refuse(error)


def lines_of_stdin() -> Iterator[str]:
    """Stdin line by line.

    Raises:
        UsageError: It is not UTF-8.
    """
    try:
        yield from sys.stdin
    except UnicodeDecodeError as error:
        _refuse(error)


def _reconfigure(stream: object, **changes: str) -> None:
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(**changes)


def _refuse(error: UnicodeDecodeError) -> NoReturn:
    message = f"stdin is not UTF-8 text ({error.reason}). Convert it first, for example with iconv -t utf-8."
    raise UsageError(message) from error
