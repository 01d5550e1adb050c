"""A calibration that is killed, or stopped by Ctrl-C, goes on where it was when the same command is run again."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import optuna
import pytest
from optuna.trial import TrialState
from tests.support import planted_folders

from selfspec_runtime.calibration_store import load_calibration

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

pytestmark = pytest.mark.slow

PATIENCE_S = 240
DATABASE = "best.json.study/study.sqlite3"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return planted_folders.save(planted_folders.planted_exit(**planted_folders.SMALL), tmp_path / "model")


def start(folder: Path, *extra: str) -> subprocess.Popen[str]:
    settings = ["--budget", "30s", "--max-new-tokens", "24", "--limit", "8", "--trials", "4"]
    files = ["--model", str(folder), "--prompts", str(folder / "prompts.jsonl"), "--output", str(folder / "best.json")]
    command = [sys.executable, "-m", "selfspec.cli", "calibrate", *files, *settings, *extra]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def num_timed_plans(folder: Path) -> int:
    """Counts by hand and read-only: Optuna would make the tables that the other process is making."""
    query = (
        "select count(*) from trials join studies using (study_id) "
        "where trials.state = 'COMPLETE' and studies.study_name like 'timed%'"
    )
    try:
        with closing(sqlite3.connect(f"file:{folder / DATABASE}?mode=ro", uri=True)) as database:
            return int(database.execute(query).fetchone()[0])
    except sqlite3.OperationalError:  # there is no database or table yet
        return 0


def timed_trials(folder: Path) -> list[FrozenTrial]:
    storage = f"sqlite:///{folder / DATABASE}"
    names = [name for name in optuna.get_all_study_names(storage) if name.startswith("timed")]
    return [t for name in names for t in optuna.load_study(study_name=name, storage=storage).get_trials()]


def wait_for_a_timed_plan(folder: Path, process: subprocess.Popen[str]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up and process.poll() is None:
        if num_timed_plans(folder) >= 2:  # plain decoding and one plan
            return
        time.sleep(0.2)
    pytest.fail(f"no plan was timed: {process.communicate()[1][-2000:] if process.poll() is not None else 'too slow'}")


def finished(trials: list[FrozenTrial]) -> dict[tuple[int, str], object]:
    return {(t.number, str(t.datetime_start)): t.values for t in trials if t.state == TrialState.COMPLETE}


def test_kill_9_loses_nothing_and_leaves_no_ghost(folder: Path) -> None:
    process = start(folder)
    wait_for_a_timed_plan(folder, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = finished(timed_trials(folder))
    again = start(folder)
    _, errors = again.communicate(timeout=PATIENCE_S)
    assert again.returncode == 0, errors
    trials = timed_trials(folder)
    assert before.items() <= finished(trials).items()
    assert all(trial.state != TrialState.RUNNING for trial in trials)
    assert "Going on with the calibration" in errors
    plan = load_calibration(folder / "best.json").calibration.steps[0].plan
    assert plan.source is not None


def test_ctrl_c_saves_says_how_to_go_on_and_exits_with_130(folder: Path) -> None:
    process = start(folder)
    wait_for_a_timed_plan(folder, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, errors
    assert "saved" in errors
    assert "Traceback" not in errors
    assert not (folder / "best.json").exists()
    assert all(trial.state != TrialState.RUNNING for trial in timed_trials(folder))
