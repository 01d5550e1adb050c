from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from selfspec_runtime.atomic import write_atomically, write_together
from selfspec_runtime.errors import SelfspecError


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _refusing(number: int):
    def fsync(_descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    return fsync


def test_a_new_file_holds_the_bytes_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.json", b"one")
    assert (tmp_path / "a.json").read_bytes() == b"one"
    assert _names(tmp_path) == ["a.json"]


def test_an_old_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"old and longer")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_link_keeps_pointing_to_its_file(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    real = tmp_path / "elsewhere" / "a.json"
    real.write_bytes(b"old")
    link = tmp_path / "a.json"
    link.symlink_to(real)
    write_atomically(link, b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"


def test_the_old_file_survives_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", _refusing(errno.ENOSPC))
    with pytest.raises(SelfspecError) as raised:
        write_atomically(path, b"new")
    message = str(raised.value)
    assert str(path) in message
    assert "Free some space" in message
    assert "unchanged" in message
    assert path.read_bytes() == b"old"
    assert _names(tmp_path) == ["a.json"]


def test_without_an_old_file_nothing_is_said_about_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", _refusing(errno.EIO))
    with pytest.raises(SelfspecError, match="Choose another place") as raised:
        write_atomically(tmp_path / "a.json", b"new")
    assert "unchanged" not in str(raised.value)
    assert _names(tmp_path) == []


def test_the_old_file_survives_a_failure_of_the_last_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"old")

    def replace(_self: Path, _target: Path) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(SelfspecError, match="writable"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert _names(tmp_path) == ["a.json"]


def test_an_interrupt_leaves_no_part_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "a.json", b"new")
    assert _names(tmp_path) == []


def test_a_missing_folder_is_named_with_its_remedy(tmp_path: Path) -> None:
    with pytest.raises(SelfspecError, match=r"nowhere.*Create the folder"):
        write_atomically(tmp_path / "nowhere" / "a.json", b"")


def test_files_that_belong_together_are_both_kept_where_the_second_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays, index = tmp_path / "best.safetensors", tmp_path / "best.json"
    write_together({arrays: b"old arrays", index: b"old index"})
    calls: list[int] = []

    def fails_the_second_time(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fails_the_second_time)
    with pytest.raises(SelfspecError, match=r"best\.json could not be written"):
        write_together({arrays: b"new arrays", index: b"new index"})
    assert (arrays.read_bytes(), index.read_bytes()) == (b"old arrays", b"old index")
    assert _names(tmp_path) == ["best.json", "best.safetensors"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
def test_a_fifo_is_written_into_and_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(path, b"new")
        assert os.read(reader, 10) == b"new"
    finally:
        os.close(reader)
    assert path.is_fifo()
    assert _names(tmp_path) == ["a.json"]
