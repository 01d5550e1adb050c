from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.workspaces import fast_workspace_in

from selfspec_calibrate import search
from selfspec_calibrate.budget import Allowance
from selfspec_calibrate.search import common_seconds, timing_deadline
from selfspec_calibrate.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    with fast_workspace_in(tmp_path) as opened:
        yield opened


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(search, "monotonic", lambda: now[0])
    return now


def _run(workspace: Workspace, clock: list[float], seconds: float, *, interrupted: bool = False) -> float:
    with search._counted(workspace):
        clock[0] += seconds
        if interrupted:
            raise KeyboardInterrupt
    return common_seconds(workspace)


def test_the_seconds_of_interrupted_runs_count(workspace: Workspace, clock: list[float]) -> None:
    assert common_seconds(workspace) == 0.0
    for seconds in (5.0, 3.0):
        with pytest.raises(KeyboardInterrupt):
            _run(workspace, clock, seconds, interrupted=True)
    assert _run(workspace, clock, 2.0) == 10.0


def test_going_over_what_is_finished_adds_nothing(workspace: Workspace, clock: list[float]) -> None:
    assert _run(workspace, clock, 4.0) == 4.0
    assert _run(workspace, clock, 1.0) == 4.0


def test_timing_ends_in_time_for_the_verdict_and_has_some_time_anyway(clock: list[float]) -> None:
    allowance = Allowance(
        max_new_tokens=64,
        num_search=8,
        num_timed=4,
        num_held_out=8,
        cost_s=1.0,
        predicted_s=1.0,
        finals_s=10.0,
        verdict_s=30.0,
    )
    assert timing_deadline(90.0, 100.0, allowance) == 150.0
    clock[0] = 149.0
    assert timing_deadline(90.0, 100.0, allowance) == 159.0
