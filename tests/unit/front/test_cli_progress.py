from __future__ import annotations

import io
import sys
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfspec.cli.console import Terminal
from selfspec.cli.progress import CalibrationProgress, ProgressState
from selfspec_calibrate.events import Event, Noted, PhaseStarted, Progressed

EVENTS: tuple[Event, ...] = (
    Noted("The budget affords 64 tokens."),
    PhaseStarted("traces", 4, 0.2),
    *(Progressed("traces", done) for done in range(1, 5)),
    PhaseStarted("timed study", 10, 0.8),
    Progressed("timed study", 1, "n-gram 1-3, [red] 4 drafts", 1.05),
    *(Progressed("timed study", done, best=1.25) for done in range(2, 11)),
)


def state_after(events: tuple[Event, ...]) -> ProgressState:
    state = ProgressState()
    for event in events:
        state = state.after(event)
    return state


def test_shares_add_up() -> None:
    assert state_after(EVENTS[:4]).fraction == pytest.approx(0.1)
    assert state_after(EVENTS[:6]).fraction == pytest.approx(0.2)
    assert state_after(EVENTS[:8]).fraction == pytest.approx(0.28)
    assert state_after(EVENTS).fraction == pytest.approx(1.0)
    assert state_after(EVENTS).best == 1.25


def test_the_time_left_follows_from_the_pace() -> None:
    assert ProgressState().left_s(10.0) is None
    assert state_after(EVENTS[:6]).left_s(10.0) == pytest.approx(40.0)
    assert state_after(EVENTS).left_s(10.0) == 0.0
    assert state_after(EVENTS[:6]).left_s(10.0, budget_s=30.0) == 20.0
    assert state_after(EVENTS[:6]).left_s(40.0, budget_s=30.0) == 0.0


def test_one_line_says_it_all() -> None:
    line = state_after(EVENTS[:8]).describe(28.0)
    assert line == "timed study 1/10, 28%, 1:12 left, best so far 1.05x, n-gram 1-3, [red] 4 drafts"


@given(st.lists(st.tuples(st.integers(0, 20), st.one_of(st.none(), st.integers(1, 9)), st.floats(0, 1)), max_size=8))
def test_the_fraction_stays_within_its_bounds_and_never_falls(phases: list[tuple[int, int | None, float]]) -> None:
    state, last = ProgressState(), 0.0
    for done, total, share in phases:
        for event in (PhaseStarted("p", total, share), Progressed("p", done)):
            state = state.after(event)
            assert 0.0 <= state.fraction <= 1.0
            assert state.fraction >= last - 1e-9
            last = state.fraction


def run(terminal: Terminal) -> None:
    ticks = count()
    with CalibrationProgress(terminal, clock=lambda: float(next(ticks))) as progress:
        for event in EVENTS:
            progress(event)


def test_without_a_terminal_lines_are_written_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    run(Terminal())
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert lines[0] == "The budget affords 64 tokens."
    assert "\x1b" not in captured.err
    assert lines[1].startswith("traces 0/4")
    assert any("[red] 4 drafts" in line for line in lines)
    assert len(lines) <= len(EVENTS)


def test_many_small_steps_do_not_flood(capsys: pytest.CaptureFixture[str]) -> None:
    with CalibrationProgress(Terminal()) as progress:
        progress(PhaseStarted("traces", 1000, 1.0))
        for done in range(1000):
            progress(Progressed("traces", done))
    assert 15 <= len(capsys.readouterr().err.splitlines()) <= 25


def test_a_quiet_terminal_hears_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    run(Terminal(quiet=True))
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar_and_the_notices_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Screen()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setattr(sys, "stderr", screen)
    run(Terminal())
    assert "The budget affords 64 tokens." in screen.getvalue()
    assert "best so far 1.25x" in screen.getvalue()
    assert "[red] 4 drafts" in screen.getvalue()
