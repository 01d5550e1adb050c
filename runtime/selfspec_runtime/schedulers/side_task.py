"""Work on a thread of its own that ends by itself, for as long as one verification."""

from __future__ import annotations

from threading import Event, Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    #: A bounded function that is given another one, which says whether it should stop.
    Work = Callable[[Callable[[], bool]], None]


class SideTask:
    """Runs a function beside the caller.

    A task that nobody ends, because an exception hit whoever meant to, ends all the same, since its work is bounded.

    Args:
        work: What to do.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._stop = Event()
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name="selfspec-ahead")

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> None:
        """Asks it to end, and returns when it has."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def raise_error(self) -> None:
        """Raises what the function raised, if it did."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            if not self._stop.is_set():
                self._work(self._stop.is_set)
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for the result
            self._error = error
