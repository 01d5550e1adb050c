"""Ctrl-C during a calibration: the prompt at hand is finished, everything is saved, and the way to go on is said."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from selfspec_runtime.errors import Interrupted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType, TracebackType

_GO_ON = "Run the same command again to go on from there, or add --restart to begin anew."


class InterruptGuard:
    """Turns the first Ctrl-C into a request and lets the second one through as `KeyboardInterrupt`.

    A half-measured prompt is worth nothing, and a prompt takes seconds; so the first Ctrl-C waits for it. Where
    signals are not ours (another thread, or a process that ignores Ctrl-C), nothing is changed.

    Attributes:
        requested: Whether Ctrl-C was pressed.
    """

    def __init__(self) -> None:
        self.requested = False
        self._ours = False

    def __enter__(self) -> Self:
        """Takes the signal over."""
        in_main_thread = threading.current_thread() is threading.main_thread()
        self._previous = signal.getsignal(signal.SIGINT)
        self._ours = in_main_thread and self._previous not in (signal.SIG_IGN, None)
        if self._ours:
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Gives the signal back."""
        if self._ours:
            signal.signal(signal.SIGINT, self._previous)

    def check(self) -> None:
        """To be called between prompts.

        Raises:
            KeyboardInterrupt: It was requested.
        """
        if self.requested:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


@contextmanager
def interruptible(what_is_saved: str) -> Iterator[InterruptGuard]:
    """Guards work that checks for Ctrl-C between prompts.

    Args:
        what_is_saved: As for `interrupted_message`.

    Raises:
        Interrupted: In the place of `KeyboardInterrupt`.
    """
    try:
        with InterruptGuard() as guard:
            yield guard
    except KeyboardInterrupt as error:
        raise Interrupted(interrupted_message(what_is_saved)) from error


def interrupted_message(what_is_saved: str) -> str:
    """The message of `Interrupted`.

    Args:
        what_is_saved: For example "12 timed plans are saved in selfspec.json.study".
    """
    return f"Interrupted: {what_is_saved}. {_GO_ON}"
