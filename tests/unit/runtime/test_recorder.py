"""The CUDA recorder against an allocator that has torch's rules for pools."""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from typing import Any

import pytest
import torch

from selfspec_runtime.executors.recorder import CudaRecorder


class Allocator:
    """Counts the graphs of each pool; a pool that its last graph has left cannot be begun again."""

    def __init__(self) -> None:
        self.num_graphs: Counter[int] = Counter()
        self.num_pools = 0

    def new_pool(self) -> int:
        self.num_pools += 1
        return self.num_pools


class FakeGraph:
    """A graph that is in its pool from the beginning of its capture to its own end."""

    allocator: Allocator

    def capture_begin(self, *, pool: int, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"
        if pool in self.allocator.num_graphs and not self.allocator.num_graphs[pool]:
            raise RuntimeError("use_count > 0 INTERNAL ASSERT FAILED")
        self.pool = pool
        self.allocator.num_graphs[pool] += 1

    def capture_end(self) -> None: ...

    def __del__(self) -> None:
        self.allocator.num_graphs[self.pool] -= 1


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    allocator = Allocator()
    monkeypatch.setattr(FakeGraph, "allocator", allocator, raising=False)
    replaced: dict[str, Any] = {
        "graph_pool_handle": allocator.new_pool,
        "CUDAGraph": FakeGraph,
        "Stream": lambda device: device,
        "stream": lambda stream: contextlib.nullcontext(),
        "synchronize": lambda device: None,
    }
    for name, fake in replaced.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return allocator


def broken() -> None:
    raise RuntimeError("cannot be captured")


def test_recordings_share_a_pool_and_a_dropped_pool_is_not_begun_again(allocator: Allocator) -> None:
    recorder = CudaRecorder(torch.device("cuda"))
    kept = [recorder.record(lambda: None) for _ in range(3)]
    assert allocator.num_graphs == {1: 3} or sorted(allocator.num_graphs.values()) == [3]
    kept.clear()
    gc.collect()
    recorder.record(lambda: None)
    assert allocator.num_pools > 1


def test_a_capture_that_failed_leaves_the_next_one_alone(allocator: Allocator) -> None:
    recorder = CudaRecorder(torch.device("cuda"))
    with pytest.raises(RuntimeError, match="cannot be captured"):
        recorder.record(broken)
    gc.collect()
    kept = recorder.record(lambda: None)
    assert sum(allocator.num_graphs.values()) == 1
    del kept
