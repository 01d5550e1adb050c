from __future__ import annotations

from collections.abc import Callable

import torch

from selfspec_calibrate.timing import MOST_REPEATS, timer_for

CPU = torch.device("cpu")


class FakeClock:
    """Time that only tasks make pass."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def __call__(self) -> float:
        return self.now

    def task(self, name: str, *seconds: float) -> Callable[[], None]:
        """A task that takes these seconds in turn, the last one for ever."""
        left = list(seconds)

        def run() -> None:
            self.log.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return run


def test_medians_without_the_warm_up() -> None:
    clock = FakeClock()
    tasks = [clock.task("a", 100.0, 1.0, 9.0, 2.0), clock.task("b", 50.0, 4.0)]
    assert timer_for(CPU, repeats=3, clock=clock)(tasks) == [2.0, 4.0]


def test_tasks_are_interleaved_and_start_in_turn() -> None:
    clock = FakeClock()
    tasks = [clock.task(name, 1.0) for name in "abc"]
    timer_for(CPU, repeats=3, clock=clock)(tasks)
    assert "".join(clock.log) == "abc" + "abc" + "bca" + "cab"


def test_quick_tasks_are_repeated_until_enough_time_has_passed() -> None:
    clock = FakeClock()
    timer_for(CPU, repeats=2, min_total_s=10.0, clock=clock)([clock.task("a", 1.0), clock.task("b", 1.0)])
    assert clock.log.count("a") == 1 + 5


def test_repeats_are_bounded() -> None:
    clock = FakeClock()
    assert timer_for(CPU, repeats=2, min_total_s=1.0, clock=clock)([clock.task("a", 0.0)]) == [0.0]
    assert clock.log.count("a") == 1 + MOST_REPEATS


def test_nothing_to_time_takes_no_time() -> None:
    assert timer_for(CPU, repeats=2, min_total_s=1.0, clock=FakeClock())([]) == []
