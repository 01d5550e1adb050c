"""Long work in a notebook's kernel, in short steps on its main thread: between them cells run and messages arrive."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from selfspec_runtime.errors import SelfspecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Step = TypeVar("Step")
PAUSE_S = 0.02
"""Between steps, so that the kernel's other messages get their turn."""


class EventLoop(Protocol):
    """What is needed of an asyncio loop."""

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> object:
        """Calls back on the loop's thread."""

    def call_later(self, delay: float, callback: Callable[[], object]) -> object:
        """Calls back on the loop's thread after some seconds."""


class SteppedWork:
    """Drives an iterator step by step.

    A model's layers are exchanged for the duration of a pass, so no two threads may use it at once. Messages of
    widgets may arrive on other threads than cells run on (JupyterLab's subshells); work that is called back by the
    main thread's own loop never meets a cell.

    Args:
        steps: The work; ``close`` is called where it is stopped.
        on_step: Told what each step gave.
        on_end: Told how it ended: "done", "stopped", or the error's own words. Called once.
        loop: The loop of the kernel's main thread; None runs everything at once.
    """

    def __init__(
        self,
        steps: Iterator[Step],
        *,
        on_step: Callable[[Step], None],
        on_end: Callable[[str], None],
        loop: EventLoop | None,
    ) -> None:
        self._steps, self._on_step, self._on_end, self._loop = steps, on_step, on_end, loop
        self._stop = threading.Event()
        self._ended = False

    def start(self) -> None:
        """Begins; returns at once where there is a loop."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._advance)
            return
        while not self._ended:
            self._advance()

    def stop(self) -> None:
        """Asks for the end before the next step; from any thread."""
        self._stop.set()

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return not self._ended

    def _advance(self) -> None:
        if self._stop.is_set():
            self._end("stopped")
            return
        try:
            with _interrupt_raises():
                step = next(self._steps)
        except StopIteration:
            self._end("done")
        except KeyboardInterrupt:
            self._end("stopped")
        except (SelfspecError, ValueError) as error:
            self._end(str(error))
        else:
            self._on_step(step)
            if self._loop is not None:
                self._loop.call_later(PAUSE_S, self._advance)

    def _end(self, how: str) -> None:
        self._ended = True
        close = getattr(self._steps, "close", None)
        if close is not None:
            close()
        self._on_end(how)


def kernel_loop() -> EventLoop | None:
    """The loop of the kernel's main thread; None outside of a notebook."""
    try:
        from IPython import get_ipython
    except ImportError:
        return None
    shell: Any = get_ipython()
    loop = getattr(getattr(shell, "kernel", None), "io_loop", None)
    found: EventLoop | None = getattr(loop, "asyncio_loop", None)
    return found


@contextmanager
def _interrupt_raises() -> Iterator[None]:
    """Lets the notebook's stop button interrupt a step: a kernel ignores it where no cell runs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
