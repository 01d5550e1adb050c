"""What calibrate says while it works; the terminal and the notebook listen, nothing here prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """Base of all events."""


@dataclass(frozen=True)
class PhaseStarted(Event):
    """A phase begins.

    Attributes:
        name: For example "traces".
        total: Units of work in it, or None if that is not known.
        share: Share of the whole calibration's time that this phase is planned to take.
    """

    name: str
    total: int | None
    share: float


@dataclass(frozen=True)
class Progressed(Event):
    """Work was done.

    Attributes:
        name: The phase.
        done: Units done so far.
        detail: What is being done, for example a plan.
        best: Best speedup so far, or None.
    """

    name: str
    done: int
    detail: str = ""
    best: float | None = None


@dataclass(frozen=True)
class Noted(Event):
    """Something the user should know.

    Attributes:
        text: One sentence.
    """

    text: str


Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """A listener that drops everything."""
    del event
