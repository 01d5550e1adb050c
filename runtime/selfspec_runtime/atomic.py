"""Files that are either the old or the new one, whatever happens while they are written."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from selfspec_runtime.errors import SelfspecError

if TYPE_CHECKING:
    from collections.abc import Mapping

_REMEDIES = {
    errno.ENOSPC: "Free some space there, then run the same command again.",
    errno.EDQUOT: "Your quota is used up: free some space there, then run the same command again.",
    errno.EACCES: "Make the folder writable, or choose another place.",
    errno.EPERM: "Make the folder writable, or choose another place.",
    errno.EROFS: "The file system is read-only: choose another place.",
    errno.ENOENT: "Create the folder first, or choose another place.",
    errno.ENOTDIR: "A part of the path is a file and not a folder: choose another place.",
    errno.EISDIR: "It is a folder: choose another name.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
}


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file beside its place, flushes it to the disk, and moves it there in one step.

    A link keeps pointing to the file that it points to. Where anything goes wrong, the old file stays as it was
    and nothing is left beside it. What is no regular file, such as a device or a FIFO, is written into: a file moved
    over it would take its place for every other program too.

    Args:
        path: Where to write; its folder must exist.
        data: The whole content.

    Raises:
        SelfspecError: The system refused, for example because the disk is full.
    """
    write_together({path: data})


def write_together(files: Mapping[Path, bytes]) -> None:
    """Writes files that belong together: none is moved to its place before all are on the disk.

    Args:
        files: Content by path, the file that refers to the others last; the folders must exist.

    Raises:
        SelfspecError: The system refused; all old files stay as they were.
    """
    parts = {path: _beside(path) for path in files if not is_stream(path)}
    path = Path()
    try:
        for path, part in parts.items():
            _write_through(part, files[path])
        for path, part in parts.items():
            part.replace(path.resolve())
        for path in (path for path in files if path not in parts):
            _write_into(path, files[path])
    except OSError as error:
        raise SelfspecError(_message(path, error)) from error
    finally:
        for part in parts.values():
            _discard(part)


def is_stream(path: Path) -> bool:
    """Whether a path is something to write into, such as a device or a FIFO: neither a file nor a folder."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _beside(path: Path) -> Path:
    final = path.resolve()
    return final.with_name(f".{final.name}.{os.getpid()}.part")


def _write_through(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _write_into(path: Path, data: bytes) -> None:
    with path.open("wb", buffering=0) as file:
        left = memoryview(data)
        while left:
            left = left[file.write(left) :]


def _discard(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return  # the error that matters is the one that is being raised


def _message(path: Path, error: OSError) -> str:
    remedy = _REMEDIES.get(error.errno or 0, "Choose another place, then run the same command again.")
    kept = "The file that was there is unchanged. " if path.is_file() else ""
    return f"{path} could not be written: {error.strerror or error}. {kept}{remedy}"
