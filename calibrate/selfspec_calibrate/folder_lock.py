"""Keeps a second calibration out of a folder, and lets go of it however the process ends."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from selfspec_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK_NAME = "lock"

_LOCKED_BYTE = 1 << 20
"""On Windows a lock hides the bytes that it covers; this one lies behind the process's number."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the only lock on a folder.

    The system frees it when the process ends, also by ``kill -9``: no stale file can keep anybody out. The number in
    the file only serves the message.

    Args:
        folder: An existing folder.

    Raises:
        UsageError: Another process holds it.
    """
    path = folder / LOCK_NAME
    path.touch()
    with path.open("r+") as file:
        if not _try_lock(file):
            raise UsageError(_message(folder, file.read().strip()))
        try:
            file.truncate()
            file.write(str(os.getpid()))
            file.flush()
            yield
        finally:
            _unlock(file)


def _message(folder: Path, holder: str) -> str:
    who = f"process {holder}" if holder else "another process"
    return (
        f"{folder} is being used by another calibration ({who}). Wait until it is done, stop it, or give this one "
        "another --output."
    )


if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: IO[str]) -> bool:
        try:
            file.seek(_LOCKED_BYTE)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        finally:
            file.seek(0)
        return True

    def _unlock(file: IO[str]) -> None:
        file.seek(_LOCKED_BYTE)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _try_lock(file: IO[str]) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(file: IO[str]) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)
