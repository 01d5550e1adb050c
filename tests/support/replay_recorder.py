"""A stand-in for CUDA graphs on a CPU: records operators with their tensors, and runs them again into the same ones.

As a graph does, it holds on to addresses and to the numbers of Python that were passed when it was recorded. So a
length that was a number, a buffer that was replaced by another, and a number drawn by Python give a wrong result
at the next replay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from selfspec_runtime.executors.recorder import Recorder, Recording
from selfspec_runtime.native.library import native_status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class RecordedOperators(TorchDispatchMode):
    """Runs operators and keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, list[Any], list[bool]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        given = {_storage(leaf) for leaf in tree_leaves((args, kwargs)) if _is_strided(leaf)}
        made = tree_leaves(out)
        fresh = [_is_strided(leaf) and _storage(leaf) not in given for leaf in made]
        if any(fresh) or func._schema.is_mutable:  # a view is the same memory at replay
            self._calls.append((func, args, kwargs, made, fresh))
        return out

    def __len__(self) -> int:
        """Number of operators that are run again."""
        return len(self._calls)

    @torch.no_grad()
    def replay(self) -> None:
        """Runs all again, with results where they were."""
        for func, args, kwargs, made, fresh in self._calls:
            again = tree_leaves(func(*args, **kwargs))
            for place, result, is_fresh in zip(made, again, fresh, strict=True):
                if is_fresh:
                    place.copy_(result)


class ReplayRecorder(Recorder):
    """Records operators.

    Attributes:
        num_recordings: Recordings made.
        num_warm_ups: Runs without recording.
    """

    def __init__(self) -> None:
        self.num_recordings = 0
        self.num_warm_ups = 0
        self._open: RecordedOperators | None = None

    def begin(self) -> None:
        """Starts to keep operators."""
        assert self._open is None, "a recording is in progress"
        self._open = RecordedOperators()
        self._open.__enter__()

    def end(self) -> Recording:
        """Stops."""
        assert self._open is not None, "nothing is being recorded"
        recording, self._open = self._open, None
        recording.__exit__(None, None, None)
        self.num_recordings += 1
        return recording

    def abort(self) -> None:
        """Stops a recording that failed."""
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None

    def warm_up(self, run: Callable[[], None]) -> None:
        """Runs."""
        self.num_warm_ups += 1
        run()


def _is_strided(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.layout == torch.strided


def _storage(leaf: Tensor) -> StorageWeakRef:
    return StorageWeakRef(leaf.untyped_storage())


@pytest.fixture
def torch_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Torch's operators alone: what compiled kernels of our own do on a CPU, no recorder sees."""
    monkeypatch.setenv("SELFSPEC_NATIVE", "0")
    native_status.cache_clear()
    yield
    native_status.cache_clear()
