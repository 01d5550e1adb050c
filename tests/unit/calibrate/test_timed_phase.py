from __future__ import annotations

import pytest

from selfspec_calibrate.events import Event, Noted, Progressed
from selfspec_calibrate.timed_phase import ZERO_STEP_PART, counting_on, trials_left


@pytest.mark.parametrize("max_trials", [1, 2, 3, 10])
def test_steps_of_memory_share_the_trials(max_trials: int) -> None:
    first = trials_left(max_trials, 0, part=ZERO_STEP_PART)
    assert first is not None
    second = trials_left(max_trials, first, part=1.0)
    assert second is not None
    assert first + second == max_trials
    assert first >= second >= (max_trials > 1)


def test_what_a_step_leaves_is_the_next_ones() -> None:
    assert trials_left(10, 2, part=1.0) == 8
    assert trials_left(2, 5, part=1.0) == 0
    assert trials_left(None, 7, part=1.0) is None


def test_progress_goes_on_where_the_step_before_ended() -> None:
    heard: list[Event] = []
    listener = counting_on(heard.append, 4)
    listener(Progressed("timed", 1, "a plan", best=1.5))
    listener(Noted("a note"))
    assert heard == [Progressed("timed", 5, "a plan", best=1.5), Noted("a note")]
