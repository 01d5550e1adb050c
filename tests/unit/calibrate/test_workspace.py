from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
import sqlalchemy
from tests.support.workspaces import workspace_in

from selfspec_calibrate.events import Event, Noted
from selfspec_calibrate.workspace import PROCESS_ATTRIBUTE, Workspace, this_process
from selfspec_runtime.errors import Interrupted, SelfspecError, UsageError

FAIL, RUNNING = optuna.trial.TrialState.FAIL, optuna.trial.TrialState.RUNNING


def _notes(heard: list[Event]) -> list[str]:
    return [event.text for event in heard if isinstance(event, Noted)]


def test_the_folder_lies_beside_the_output(tmp_path: Path) -> None:
    with workspace_in(tmp_path) as workspace:
        assert workspace.folder == tmp_path / "out.json.study"
        assert workspace.folder.is_dir()


def test_the_same_command_finds_what_it_left(tmp_path: Path) -> None:
    heard: list[Event] = []
    with workspace_in(tmp_path, heard) as workspace:
        workspace.open_study("timed").add_trial(optuna.create_trial(value=1.5))
        workspace.write_json("costs.json", {"pass_s": [0.1]})
    assert _notes(heard) == []
    with workspace_in(tmp_path, heard) as workspace:
        assert workspace.open_study("timed").best_value == 1.5
        assert workspace.read_json("costs.json") == {"pass_s": [0.1]}
    assert len(_notes(heard)) == 1
    assert _notes(heard)[0].startswith("Going on")


def test_another_command_starts_anew_says_so_and_keeps_the_old(tmp_path: Path) -> None:
    heard: list[Event] = []
    with workspace_in(tmp_path) as workspace:
        workspace.open_study("timed").add_trial(optuna.create_trial(value=1.5))
        workspace.write_json("costs.json", 1)
    with workspace_in(tmp_path, heard, prompts_sha256="other", seed=3) as workspace:
        assert workspace.open_study("timed").trials == []
        assert workspace.read_json("costs.json") is None
    assert "changed: the prompts, --seed" in _notes(heard)[0]
    with workspace_in(tmp_path) as workspace:
        assert len(workspace.open_study("timed").trials) == 1


def test_restart_forgets_everything_even_a_damaged_file(tmp_path: Path) -> None:
    with workspace_in(tmp_path) as workspace:
        workspace.open_study("timed").add_trial(optuna.create_trial(value=1.5))
        workspace.write_json("costs.json", 1)
        (workspace.folder / "more").mkdir()
        database = workspace.folder / "study.sqlite3"
    database.write_bytes(b"not a database at all, but long enough to be taken for one" * 99)
    with pytest.raises(SelfspecError, match="--restart"), workspace_in(tmp_path):
        pass
    with workspace_in(tmp_path, restart=True) as workspace:
        assert workspace.open_study("timed").trials == []
        assert workspace.read_json("costs.json") is None
        assert not (workspace.folder / "more").exists()


def test_restart_forgets_only_its_own_studies_in_a_shared_storage(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shared.db"
    for seed in (0, 1):
        with workspace_in(tmp_path, storage=url, seed=seed) as workspace:
            workspace.open_study("timed").add_trial(optuna.create_trial(value=1.5))
    with workspace_in(tmp_path, storage=url, seed=0, restart=True) as workspace:
        assert workspace.open_study("timed").trials == []
    with workspace_in(tmp_path, storage=url, seed=1) as workspace:
        assert len(workspace.open_study("timed").trials) == 1


def test_a_second_process_is_told_which_one_is_there(tmp_path: Path) -> None:
    with workspace_in(tmp_path):
        with pytest.raises(UsageError, match=f"process {os.getpid()}"), workspace_in(tmp_path):
            pass
    with workspace_in(tmp_path):
        pass


def test_a_killed_process_keeps_nobody_out(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys, pathlib\n"
        "from selfspec_calibrate.folder_lock import locked\n"
        "with locked(pathlib.Path(sys.argv[1])):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with workspace_in(tmp_path) as workspace:
        folder = workspace.folder
    subprocess.run([sys.executable, "-c", program, str(folder)], check=False)
    assert (folder / "lock").read_text() != str(os.getpid())
    with workspace_in(tmp_path):
        assert (folder / "lock").read_text() == str(os.getpid())


def test_trials_that_a_killed_process_left_running_have_failed(tmp_path: Path) -> None:
    with workspace_in(tmp_path) as workspace:
        study = workspace.open_study("timed")
        ghost = study.ask()
        ghost.set_user_attr(PROCESS_ATTRIBUTE, "elsewhere:1")
        ghost.set_user_attr("pairs", [1])
        study.ask()
    with workspace_in(tmp_path) as workspace:
        trials = workspace.open_study("timed").trials
    assert [trial.state for trial in trials] == [FAIL, FAIL]
    assert trials[0].user_attrs["pairs"] == [1]


def _as_if_remote(workspace: Workspace) -> Workspace:
    """The same workspace under the URL of a server, which a lock of this machine does not guard."""
    return Workspace(workspace.folder, workspace.identity, "postgresql://user:secret@server/db", workspace.storage)


def test_on_a_server_only_ghosts_of_this_machine_are_known_to_be_dead(tmp_path: Path) -> None:
    with workspace_in(tmp_path) as workspace:
        study = workspace.open_study("timed")
        study.ask().set_user_attr(PROCESS_ATTRIBUTE, this_process())
        assert _as_if_remote(workspace).open_study("timed").trials[0].state == FAIL
        study.ask().set_user_attr(PROCESS_ATTRIBUTE, "elsewhere:7")
        with pytest.raises(UsageError, match="elsewhere:7") as raised:
            _as_if_remote(workspace).open_study("timed")
        assert "secret" not in str(raised.value)
        assert study.trials[1].state == RUNNING


def test_a_study_keeps_its_direction(tmp_path: Path) -> None:
    with workspace_in(tmp_path) as workspace:
        workspace.open_study("timed", direction="minimize")
        with pytest.raises(SelfspecError, match="minimize"):
            workspace.open_study("timed", direction="maximize")


def test_a_dashboard_can_read_while_we_write(tmp_path: Path) -> None:
    with workspace_in(tmp_path) as workspace:
        connection = sqlite3.connect(workspace.folder / "study.sqlite3")
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        connection.close()
        assert optuna.get_all_study_names(workspace.storage_url) == []


@pytest.mark.parametrize("name", ["a b", "50%", "what?", "nächste#1"])
def test_any_folder_name_will_do(tmp_path: Path, name: str) -> None:
    with workspace_in(tmp_path / name) as workspace:
        workspace.open_study("timed")
        assert (workspace.folder / "study.sqlite3").stat().st_size > 0


@pytest.mark.parametrize("url", ["nonsense", "postgresql+nothing://h/db"])
def test_a_storage_that_is_none_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(UsageError, match="--storage"), workspace_in(tmp_path, storage=url):
        pass


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--output"), workspace_in(tmp_path / "file"):
        pass


def test_a_storage_that_fails_names_itself_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise optuna.exceptions.StorageInternalError("disk full")

    with workspace_in(tmp_path) as workspace:
        monkeypatch.setattr(optuna, "create_study", full)
        with pytest.raises(SelfspecError, match="free space") as raised:
            _as_if_remote(workspace).open_study("timed")
    assert "server/db" in str(raised.value)
    assert "secret" not in str(raised.value)


def test_ctrl_c_in_any_phase_says_what_is_saved_and_how_to_go_on(tmp_path: Path) -> None:
    with pytest.raises(Interrupted, match=r"saved in .*out\.json\.study.*Run the same command again"):
        with workspace_in(tmp_path):
            raise KeyboardInterrupt
    with workspace_in(tmp_path):
        pass  # it let go of the folder


@pytest.mark.parametrize("error", [sqlite3.OperationalError("disk full"), optuna.exceptions.StorageInternalError("x")])
def test_a_storage_that_fails_in_any_phase_is_told(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(SelfspecError, match="See to free space"), workspace_in(tmp_path):
        raise error


def test_a_storage_that_fails_while_studies_are_forgotten_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(*_: object) -> None:
        raise optuna.exceptions.StorageInternalError("database is locked")

    monkeypatch.setattr(optuna, "get_all_study_names", locked)
    with pytest.raises(SelfspecError, match="database is locked"), workspace_in(tmp_path, restart=True):
        pass


def _fill_up(connection: sqlite3.Connection, _record: object) -> None:
    connection.execute("PRAGMA max_page_count = 1")  # SQLite takes the pages that there are for the least


def _store_until_it_is_full(folder: Path) -> None:
    with workspace_in(folder) as workspace:
        study = workspace.open_study("timed")
        workspace.storage.engine.dispose()
        sqlalchemy.event.listen(workspace.storage.engine, "connect", _fill_up)
        for _ in range(20):
            study.add_trial(optuna.create_trial(value=1.0, user_attrs={"runs": "x" * 10_000}))


def test_a_full_disk_is_told_as_one(tmp_path: Path) -> None:
    with pytest.raises(SelfspecError) as told:
        _store_until_it_is_full(tmp_path)
    message = str(told.value)
    assert f"{tmp_path / 'out.json.study' / 'study.sqlite3'}: database or disk is full. What was stored" in message
    assert "run the same command again" in message
