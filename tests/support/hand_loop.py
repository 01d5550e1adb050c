"""An event loop that a test turns by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class HandLoop:
    """Keeps what it is to call back until it is turned.

    Attributes:
        waiting: Callbacks in order.
    """

    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> object:
        """Keeps it."""
        return self.waiting.append(callback)

    def call_later(self, delay: float, callback: Callable[[], object]) -> object:
        """Keeps it, however long the delay."""
        del delay
        return self.waiting.append(callback)

    def turn(self) -> None:
        """Calls what waits."""
        callbacks, self.waiting = self.waiting, []
        for callback in callbacks:
            callback()
