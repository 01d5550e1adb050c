from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from selfspec_runtime.atomic import write_atomically, write_together
from selfspec_runtime.errors import SelfspecError

if TYPE_CHECKING:
    from pathlib import Path


def test_content_is_written_and_missing_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file.json"
    write_atomically(path, b"content")
    assert path.read_bytes() == b"content"
    assert [entry.name for entry in path.parent.iterdir()] == ["file.json"]


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_bytes(b"old")
    link.symlink_to(real)
    write_atomically(link, b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "Free some disk space"),
        (errno.EDQUOT, "quota"),
        (errno.EACCES, "may write to"),
        (errno.EIO, "Check the disk"),
    ],
)
def test_a_failed_write_keeps_the_old_files_and_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    arrays, index = tmp_path / "best.safetensors", tmp_path / "best.json"
    write_together({arrays: b"old arrays", index: b"old index"})
    calls: list[int] = []

    def fails_the_second_time(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fails_the_second_time)
    with pytest.raises(SelfspecError, match=remedy) as caught:
        write_together({arrays: b"new arrays", index: b"new index"})
    assert str(index) in str(caught.value)
    assert caught.value.exit_code == 1
    assert (arrays.read_bytes(), index.read_bytes()) == (b"old arrays", b"old index")
    assert {entry.name for entry in tmp_path.iterdir()} == {"best.json", "best.safetensors"}


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file", b"content")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_that_name_is_said(tmp_path: Path) -> None:
    with pytest.raises(SelfspecError, match=r"cannot be written: is a directory\. A folder has this name"):
        write_atomically(tmp_path, b"content")


def test_a_file_in_the_path_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SelfspecError, match="A part of the path is a file"):
        write_atomically(tmp_path / "file" / "best.json", b"content")
