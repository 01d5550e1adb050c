"""Writes files so that a failure leaves the old ones as they were."""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from selfspec_runtime.errors import SelfspecError

if TYPE_CHECKING:
    from collections.abc import Mapping

_REMEDIES = {
    errno.ENOSPC: "Free some disk space, or choose a folder on another disk",
    errno.EDQUOT: "Your quota is used up: delete something, or choose a folder on another disk",
    errno.EACCES: "Choose a folder that you may write to",
    errno.EPERM: "Choose a folder that you may write to",
    errno.EROFS: "Choose a folder that is not on a read-only disk",
    errno.EISDIR: "A folder has this name: choose another file name",
    errno.ENOTDIR: "A part of the path is a file: choose another folder",
    errno.EEXIST: "A part of the path is a file: choose another folder",
    errno.ENAMETOOLONG: "Choose a shorter name",
}


def write_atomically(path: Path, data: bytes) -> None:
    """Writes one file: its old content or its new one is there at any time, never a part.

    Args:
        path: The file; missing folders are made, and a symbolic link is followed.
        data: Its content.

    Raises:
        SelfspecError: It cannot be written; an old file is unchanged.
    """
    write_together({path: data})


def write_together(files: Mapping[Path, bytes]) -> None:
    """Writes files that belong together: none is replaced before all are safely on the disk.

    Args:
        files: Contents by path, the file that refers to the others last.

    Raises:
        SelfspecError: One of them cannot be written; old files are unchanged.
    """
    staged: dict[Path, Path] = {}
    current = Path()
    try:
        for current, data in files.items():
            target = current.resolve()
            target.parent.mkdir(parents=True, exist_ok=True)
            _require_replaceable(target)
            # Entered before it is written, so that an interrupted write is cleaned up too.
            staged[target] = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.tmp")
            _write_synced(staged[target], data)
        for current, beside in staged.items():
            beside.replace(current)
    except OSError as error:
        raise _cannot_write(current, error) from error
    finally:
        for beside in staged.values():
            with suppress(OSError):
                beside.unlink(missing_ok=True)
    for folder in {path.parent for path in staged}:
        _sync_folder(folder)


def _require_replaceable(path: Path) -> None:
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Makes the renaming itself durable, where the system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _cannot_write(path: Path, error: OSError) -> SelfspecError:
    reason = (error.strerror or str(error)).lower()
    remedy = _REMEDIES.get(error.errno or 0, "Check the disk, or choose another folder")
    return SelfspecError(f"{path} cannot be written: {reason}. {remedy}. An older file of this name is unchanged.")
