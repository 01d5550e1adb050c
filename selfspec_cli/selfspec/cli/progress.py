"""How far a calibration is, told from its events: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from rich.text import Text

from selfspec.cli.console import visible
from selfspec.cli.durations import clock_time
from selfspec_calibrate.events import Event, Noted, PhaseStarted, Progressed

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from rich.progress import Progress, TaskID

    from selfspec.cli.console import Terminal

LINE_STEP = 0.05
"""Share of the work after which a line is written where there is no terminal."""
MIN_FRACTION = 0.02
"""Share of the work before which no time left is given."""


@dataclass(frozen=True, kw_only=True)
class ProgressState:
    """What the events so far add up to.

    Attributes:
        finished: Share of the work in finished phases.
        phase: Name of the phase in progress.
        total: Units of work in it, or None.
        share: Its share of the work.
        done: Units done in it.
        detail: What is being done.
        best: Best speedup so far, or None.
    """

    finished: float = 0.0
    phase: str = ""
    total: int | None = None
    share: float = 0.0
    done: int = 0
    detail: str = ""
    best: float | None = None

    def after(self, event: Event) -> ProgressState:
        """The state after one more event."""
        if isinstance(event, PhaseStarted):
            finished = min(self.finished + self.share, 1.0)
            return ProgressState(
                finished=finished, phase=event.name, total=event.total, share=event.share, best=self.best
            )
        if isinstance(event, Progressed):
            best = event.best if event.best is not None else self.best
            return replace(self, done=event.done, detail=event.detail, best=best)
        return self

    @property
    def fraction(self) -> float:
        """Share of the whole work that is done, 0 to 1."""
        within = min(self.done / self.total, 1.0) if self.total else 0.0
        return min(self.finished + self.share * within, 1.0)

    def left_s(self, elapsed_s: float, *, budget_s: float = math.inf) -> float | None:
        """Seconds left at the pace so far and within the budget, or None where it is too early to say."""
        fraction = self.fraction
        if fraction < MIN_FRACTION:
            return None
        return min(elapsed_s * (1 - fraction) / fraction, max(budget_s - elapsed_s, 0.0))

    def describe(self, elapsed_s: float, *, budget_s: float = math.inf) -> str:
        """One line: phase, count, time left, best so far, what is being done."""
        count = f" {self.done}/{self.total}" if self.total else ""
        left = self.left_s(elapsed_s, budget_s=budget_s)
        parts = [
            f"{self.phase}{count}",
            f"{self.fraction:.0%}",
            "" if left is None else f"{clock_time(left)} left",
            "" if self.best is None else f"best so far {self.best:.2f}x",
            self.detail,
        ]
        return ", ".join(part for part in parts if part)


class CalibrationProgress:
    """Listens to a calibration and writes to stderr.

    A bar is drawn when something happens and not by a thread of its own, which would take time from what is measured.

    Args:
        terminal: Where notices go; a quiet one gets no progress either.
        budget_s: What the calibration may take; nothing longer is told to be left.
        clock: Gives seconds.
    """

    def __init__(
        self, terminal: Terminal, *, budget_s: float = math.inf, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.terminal = terminal
        self.budget_s = budget_s
        self.state = ProgressState()
        self._clock = clock
        self._started = clock()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._said = -1.0

    def __enter__(self) -> Self:
        if sys.stderr.isatty() and not self.terminal.quiet:
            self._bar = _bar()
            self._bar.start()
            self._task = self._bar.add_task("", total=1.0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, event: Event) -> None:
        """Takes an event in."""
        before, self.state = self.state, self.state.after(event)
        if isinstance(event, Noted):
            self._note(event.text)
        elif self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self.state.fraction, description=self._line(), refresh=True)
        elif self._is_worth_a_line(before):
            self._said = self.state.fraction
            self.terminal.notice(self._line())

    def _line(self) -> str:
        return self.state.describe(self._clock() - self._started, budget_s=self.budget_s)

    def _note(self, text: str) -> None:
        if self._bar is None:
            self.terminal.notice(text)
        else:
            self._bar.console.print(Text(visible(text), style="dim"), soft_wrap=True)

    def _is_worth_a_line(self, before: ProgressState) -> bool:
        changed = before.phase != self.state.phase or before.best != self.state.best
        return changed or self.state.fraction >= self._said + LINE_STEP


def _bar() -> Progress:
    from rich.progress import BarColumn, Progress, TextColumn

    from selfspec.cli.console import console

    text = TextColumn("{task.description}", markup=False)
    return Progress(BarColumn(bar_width=24), text, console=console(stderr=True), auto_refresh=False, transient=True)
