"""Ctrl-C during a calibration: the prompt at hand is finished, everything is saved, and the way to go on is said."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
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

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


def interrupted_message(what_is_saved: str) -> str:
    """The message of `Interrupted`.

    Args:
        what_is_saved: For example "12 timed plans are saved in selfspec.json.study".
    """
    return f"Interrupted: {what_is_saved}. {_GO_ON}"
