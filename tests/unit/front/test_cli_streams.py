from __future__ import annotations

import io
import subprocess
import sys

import pytest

from selfspec.cli.streams import lines_of_stdin, prepare_streams, read_stdin
from selfspec_runtime.errors import UsageError


def piped(monkeypatch: pytest.MonkeyPatch, data: bytes, *, encoding: str = "ascii") -> None:
    """Lets stdin hold bytes, read as the locale would have it until the streams are prepared."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding=encoding, errors="surrogateescape"))
    prepare_streams()


def test_piped_text_is_utf8_whatever_the_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    piped(monkeypatch, "\ufeffcaf\u00e9 \u6f22".encode())
    assert read_stdin() == "caf\u00e9 \u6f22"
    piped(monkeypatch, "\u00e9\n\u6f22\n".encode(), encoding="latin-1")
    assert list(lines_of_stdin()) == ["\u00e9\n", "\u6f22\n"]


def test_other_bytes_are_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for read in (read_stdin, lambda: list(lines_of_stdin())):
        piped(monkeypatch, b"caf\xe9")
        with pytest.raises(UsageError, match=r"stdin is not UTF-8 text .*iconv"):
            read()


def test_closed_streams_are_empty_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    prepare_streams()
    assert read_stdin() == ""
    assert sys.stdout.write("x") == sys.stderr.write("x") == 1
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        assert not stream.isatty()
        stream.close()


def test_text_that_the_terminal_cannot_show_is_no_error() -> None:
    script = (
        "import sys; from selfspec.cli.streams import prepare_streams; prepare_streams(); "
        "sys.stdout.write('x\U0001f642\\ud800')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=False, env={"PYTHONIOENCODING": "ascii"}
    )
    assert (done.returncode, done.stdout) == (0, b"x??")
