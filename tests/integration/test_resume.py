"""A timed study that is killed, or stopped by Ctrl-C, and run again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import optuna
import pytest

from selfspec_calibrate.trial_book import TrialBook

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
WARM_UP_LENGTH, LENGTH = 8, 12
STATE = optuna.trial.TrialState


def _run(folder: Path, dies_at: int = 0, dies_by: signal.Signals = signal.SIGKILL) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-m", "tests.support.resumed_study", str(folder), str(dies_at), str(int(dies_by))],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def _log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log").read_text().splitlines()]


def _result(folder: Path) -> Any:
    return json.loads((folder / "result.json").read_text())


def _measured(folder: Path) -> Counter[tuple[str, int]]:
    """How often each plan measured each prompt; warm-ups are shorter, and plain decoding is part of every block."""
    entries = [entry for entry in _log(folder) if entry["length"] == LENGTH and entry["plan"] != "plain decoding"]
    return Counter((entry["plan"], entry["prompt"]) for entry in entries)


def _study(folder: Path) -> optuna.Study:
    url = f"sqlite:///{folder}/out.json.study/study.sqlite3"
    (name,) = optuna.get_all_study_names(url)
    return optuna.load_study(study_name=name, storage=url)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    done = _run(folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_undisturbed_it_finds_the_planted_exit(whole: Path) -> None:
    best = _result(whole)[0]
    assert best["plan"]["source"]["exit_layer"] == 2
    assert best["measured_speedup"] > 1.5
    assert set(_measured(whole).values()) == {2}


def test_killed_in_the_middle_it_goes_on_and_ends_the_same(whole: Path, tmp_path: Path) -> None:
    total = len(_log(whole))
    killed = _run(tmp_path, dies_at=total * 2 // 3)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "result.json").exists()
    states = Counter(trial.state for trial in _study(tmp_path).trials)
    assert states[STATE.RUNNING] > 0
    assert states[STATE.COMPLETE] > 1
    finished = {
        each.plan.describe() for each in TrialBook(_study(tmp_path)).evidence().values() if each.outcome == "complete"
    }
    until_then = len(_log(tmp_path))

    again = _run(tmp_path)
    assert again.returncode == 0, again.stderr
    assert _result(tmp_path) == _result(whole)
    assert not {entry["plan"] for entry in _log(tmp_path)[until_then:]} & (finished - {"plain decoding"})
    assert not [trial for trial in _study(tmp_path).trials if trial.state == STATE.RUNNING]
    # Only the prompt at hand was lost: each of up to two plans may have measured it once or twice in vain.
    extra = _measured(tmp_path) - _measured(whole)
    assert len(extra) <= 2
    assert max(extra.values(), default=0) <= 2


def test_ctrl_c_ends_it_with_everything_saved_and_says_how_to_go_on(whole: Path, tmp_path: Path) -> None:
    stopped = _run(tmp_path, dies_at=len(_log(whole)) // 2, dies_by=signal.SIGINT)
    assert stopped.returncode != 0
    last_line = stopped.stderr.strip().splitlines()[-1]
    assert "Interrupted: " in last_line
    assert "same command" in last_line
    assert not [trial for trial in _study(tmp_path).trials if trial.state == STATE.RUNNING]

    again = _run(tmp_path)
    assert again.returncode == 0, again.stderr
    assert _result(tmp_path) == _result(whole)
    assert _measured(tmp_path) == _measured(whole)
