"""Compares durations fairly: warmed up, interleaved, medians."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter

import torch

Task = Callable[[], object]
Timer = Callable[[Sequence[Task]], list[float]]
"""Seconds of each task, in order."""

MOST_REPEATS = 50


def timer_for(
    device: torch.device, *, repeats: int, min_total_s: float = 0.0, clock: Callable[[], float] = perf_counter
) -> Timer:
    """A timer of tasks that run on a device.

    Every task runs once unmeasured. Then all run in turn, each time from another one on, so that drift of the
    machine (frequency, temperature, neighbours) meets all alike.

    Args:
        device: Where the tasks run; a CUDA device is waited for before and after each.
        repeats: Fewest times that each task is timed.
        min_total_s: Fewest seconds over which all of them are timed: quick tasks are repeated more often, at most
            50 times.
        clock: Seconds since some moment.

    Returns:
        A function from tasks to their median seconds.
    """

    def seconds(tasks: Sequence[Task]) -> list[float]:
        for task in tasks:
            task()
        samples: list[list[float]] = [[] for _ in tasks]
        started = clock()
        turn = 0
        while tasks and (turn < repeats or (clock() - started < min_total_s and turn < MOST_REPEATS)):
            for offset in range(len(tasks)):
                index = (turn + offset) % len(tasks)
                samples[index].append(_timed(tasks[index], device, clock))
            turn += 1
        return [median(sample) for sample in samples]

    return seconds


def _timed(task: Task, device: torch.device, clock: Callable[[], float]) -> float:
    _synchronize(device)
    started = clock()
    task()
    _synchronize(device)
    return clock() - started


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
