"""Recording and replaying: CUDA graphs, and the same contract without recording."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

#: Runs before recording: libraries allocate workspaces and kernels are compiled at the first.
WARM_UP_RUNS = 2


class Recording(Protocol):
    """Something recorded."""

    def replay(self) -> None:
        """Launches it again, with whatever its tensors hold now."""


class Recorder(ABC):
    """Records what is run between :meth:`begin` and :meth:`end`."""

    @abstractmethod
    def begin(self) -> None:
        """Starts a recording."""

    @abstractmethod
    def end(self) -> Recording:
        """Ends the recording."""

    @abstractmethod
    def abort(self) -> None:
        """Gives a recording up, if one is in progress."""

    @abstractmethod
    def warm_up(self, run: Callable[[], None]) -> None:
        """Runs without recording, so that nothing happens for the first time while recording."""

    def record(self, run: Callable[[], None]) -> Recording:
        """Records one function.

        Args:
            run: Takes and returns nothing; it works on tensors that were there before.
        """
        try:
            self.begin()
            run()
            return self.end()
        finally:
            self.abort()


class CudaRecorder(Recorder):
    """Records CUDA graphs in one memory pool, on a stream of its own.

    Graphs of one pool may overwrite each other's intermediate results; none reads another's, because all that
    outlives a replay is outside of the pool. Capture is confined to this thread: in a notebook others use the
    device too.

    Args:
        device: A CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._alive: WeakSet[torch.cuda.CUDAGraph] = WeakSet()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._graph: torch.cuda.CUDAGraph | None = None
        self._within: Any = None

    def begin(self) -> None:
        """Starts a capture."""
        torch.cuda.synchronize(self.device)
        if not self._alive:  # a pool ends with its last graph, and cannot be begun again
            self._pool = torch.cuda.graph_pool_handle()
        self._within = torch.cuda.stream(self._stream)
        self._within.__enter__()
        self._graph = torch.cuda.CUDAGraph()
        self._graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def end(self) -> Recording:
        """Ends the capture and instantiates the graph."""
        assert self._graph is not None, "nothing is being captured"
        self._graph.capture_end()
        graph, self._graph = self._graph, None
        self._alive.add(graph)
        self._leave()
        return graph

    def abort(self) -> None:
        """Ends a capture that failed."""
        if self._graph is not None:
            with suppress(RuntimeError):
                self._graph.capture_end()
            self._graph = None
        self._leave()

    def warm_up(self, run: Callable[[], None]) -> None:
        """Runs on the stream that captures."""
        current = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            run()
        current.wait_stream(self._stream)

    def _leave(self) -> None:
        if self._within is not None:
            self._within.__exit__(None, None, None)
            self._within = None


class Unrecorded:
    """A function that is called anew each time.

    Args:
        run: The function.
    """

    def __init__(self, run: Callable[[], None]) -> None:
        self.replay = run


class NoRecorder(Recorder):
    """Runs the steps as they are: what replay is compared with."""

    def begin(self) -> None:
        """Refuses."""
        raise NotImplementedError("parts of a pass can only be recorded")

    def end(self) -> Recording:
        """Refuses."""
        raise NotImplementedError("parts of a pass can only be recorded")

    def abort(self) -> None:
        """Does nothing."""

    def warm_up(self, run: Callable[[], None]) -> None:
        """Does nothing: there is nothing to prepare for."""
        del run

    def record(self, run: Callable[[], None]) -> Recording:
        """The function itself."""
        return Unrecorded(run)
