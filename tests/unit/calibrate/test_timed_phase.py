from __future__ import annotations

import pytest

from selfspec_calibrate.events import Event, Noted, Progressed
from selfspec_calibrate.timed_phase import counting_on, trials_left


@pytest.mark.parametrize("families", [(1, 1), (5, 1), (4, 3)])
@pytest.mark.parametrize("max_trials", [1, 2, 3, 6, 10])
def test_steps_of_memory_share_the_trials_by_their_families(max_trials: int, families: tuple[int, int]) -> None:
    first = trials_left(max_trials, 0, families=families)
    assert first is not None
    second = trials_left(max_trials, first, families=families[1:])
    assert second is not None
    assert first + second == max_trials
    assert first >= 1
    assert second >= (max_trials > 1), "no step goes without"
    if max_trials >= sum(families):
        assert first >= families[0]
        assert second >= families[1]


def test_what_a_step_leaves_is_the_next_ones() -> None:
    assert trials_left(10, 2, families=(3,)) == 8
    assert trials_left(2, 5, families=(3,)) == 0
    assert trials_left(None, 7, families=(3,)) is None


def test_progress_goes_on_where_the_step_before_ended() -> None:
    heard: list[Event] = []
    listener = counting_on(heard.append, 4)
    listener(Progressed("timed", 1, "a plan", best=1.5))
    listener(Noted("a note"))
    assert heard == [Progressed("timed", 5, "a plan", best=1.5), Noted("a note")]
