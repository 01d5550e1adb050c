from __future__ import annotations

import io
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfspec.cli.console import Terminal, visible


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_results_and_notices_go_to_their_streams(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal()
    terminal.result("a result [/INST]")
    terminal.notice("a notice [red]")
    terminal.error("what went wrong [/]")
    captured = capsys.readouterr()
    assert captured.out == "a result [/INST]\n"
    assert captured.err == "a notice [red]\nError: what went wrong [/]\n"


def test_a_quiet_terminal_still_says_errors(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(quiet=True)
    terminal.notice("a notice")
    terminal.error("an error")
    assert capsys.readouterr().err == "Error: an error\n"


def test_a_models_text_reaches_a_pipe_byte_for_byte(capsys: pytest.CaptureFixture[str]) -> None:
    text = "[/INST] [red]x[/red] \x1b[31m\ttab\n🙂 :smile:"
    Terminal().piece(text)
    assert capsys.readouterr().out == text


def test_a_terminal_gets_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    Terminal().piece("a\x1b[2Jb\r\n[/INST]")
    assert screen.getvalue() == "a\\x1b[2Jb\\x0d\n[/INST]"


def test_a_terminal_reads_no_line_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    Terminal().piece("safe \u202e live \u2066x\u2069 \u05e9\u05dc\u05d5\u05dd")
    assert screen.getvalue() == "safe \\u202e live \\u2066x\\u2069 \u05e9\u05dc\u05d5\u05dd"


def test_no_color_is_honoured_and_colours_are_used_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    coloured = Screen()
    monkeypatch.setattr(sys, "stderr", coloured)
    Terminal().error("x")
    assert "\x1b[1;31m" in coloured.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    plain = Screen()
    monkeypatch.setattr(sys, "stderr", plain)
    Terminal().error("x")
    assert "\x1b[1;31m" not in plain.getvalue()
    assert "31m" not in plain.getvalue()


def test_a_long_notice_is_not_broken_into_lines(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal().notice("word " * 100)
    assert capsys.readouterr().err.count("\n") == 1


@given(st.text())
def test_visible_text_has_no_controls_and_keeps_the_rest(text: str) -> None:
    shown = visible(text)
    assert all(character in "\n\t" or not (ord(character) < 32 or 127 <= ord(character) < 160) for character in shown)
    if all(character in "\n\t" or 32 <= ord(character) < 127 for character in text):
        assert shown == text
