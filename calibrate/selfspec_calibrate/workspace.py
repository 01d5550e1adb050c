"""The folder beside a calibration's output, in which it keeps what it has measured until it is done."""

from __future__ import annotations

import json
import os
import shutil
import socket
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import optuna

from selfspec_calibrate import events
from selfspec_calibrate.folder_lock import LOCK_NAME, locked
from selfspec_calibrate.interruption import interrupted_message
from selfspec_calibrate.study_identity import StudyIdentity, identify
from selfspec_calibrate.study_storage import STORAGE_FAILURES, is_file, open_storage, sqlite_url, storage_error
from selfspec_runtime.atomic import write_atomically
from selfspec_runtime.errors import Interrupted, SelfspecError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selfspec_calibrate.settings import CalibrationSettings
    from selfspec_runtime.fingerprint import ModelFingerprint

PROCESS_ATTRIBUTE = "process"
"""Trial attribute that says who runs it."""

_DATABASE = "study.sqlite3"
_IDENTITY = "identity.json"


@dataclass(frozen=True)
class Workspace:
    """An open workspace; it belongs to this process alone.

    Attributes:
        folder: ``<output>.study``.
        identity: What the measurements hold for. Studies and files carry its key, so that another command finds
            nothing of this one, and this one finds everything when it is run again.
        storage_url: SQLAlchemy URL of the studies, for ``optuna-dashboard`` too.
        storage: The studies.
    """

    folder: Path
    identity: StudyIdentity
    storage_url: str
    storage: optuna.storages.RDBStorage

    @classmethod
    @contextmanager
    def open(
        cls,
        settings: CalibrationSettings,
        fingerprint: ModelFingerprint,
        prompts_sha256: str,
        *,
        listener: events.Listener = events.ignore,
    ) -> Iterator[Workspace]:
        """Opens the workspace of a calibration.

        Args:
            settings: ``output``, ``storage`` and ``restart`` say where; most of the others identify it.
            fingerprint: The loaded model's.
            prompts_sha256: Hash of the prompt file's content.
            listener: Hears whether an earlier calibration is continued or left alone.

        Yields:
            The workspace.

        Raises:
            UsageError: Another calibration uses the folder, or the storage's URL is wrong.
            SelfspecError: The folder or the storage cannot be written, also later on, by whatever phase.
            Interrupted: Ctrl-C in a phase that knows no better than to stop at once.
        """
        folder = Path(f"{settings.output}.study")
        _make(folder)
        with locked(folder):
            if settings.restart:
                _empty(folder)
            identity = identify(settings, fingerprint, prompts_sha256)
            _announce(folder, identity, listener)
            url = settings.storage or sqlite_url(folder / _DATABASE)
            workspace = cls(folder, identity, url, open_storage(url))
            try:
                with workspace._failures_in_words():
                    if settings.restart:
                        workspace.delete_studies()
                    yield workspace
            finally:
                workspace.storage.remove_session()
                workspace.storage.engine.dispose()

    @contextmanager
    def _failures_in_words(self) -> Iterator[None]:
        """Ends every phase alike: what is stored stays, and the message says how to go on."""
        try:
            yield
        except KeyboardInterrupt as error:
            told = interrupted_message(f"what was finished before is saved in {self.folder}")
            raise Interrupted(told) from error
        except STORAGE_FAILURES as error:
            raise storage_error(self.storage_url, error) from error

    def open_study(
        self,
        name: str,
        *,
        direction: Literal["minimize", "maximize"] = "maximize",
        sampler: optuna.samplers.BaseSampler | None = None,
        pruner: optuna.pruners.BasePruner | None = None,
    ) -> optuna.Study:
        """Creates a study, or loads it as it was left.

        Trials that a killed process left running are told to have failed; what they had measured stays in their
        attributes.

        Args:
            name: For example "timed"; the identity's key is added.
            direction: Must be the one that the study was created with.
            sampler: Proposes parameters.
            pruner: Stops trials.

        Raises:
            UsageError: A process on another machine is working on the same study.
            SelfspecError: The storage cannot be written, or the study has another direction.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            study = optuna.create_study(
                study_name=self.study_name(name),
                storage=self.storage,
                direction=direction,
                sampler=sampler,
                pruner=pruner,
                load_if_exists=True,
            )
            _check_direction(study, direction)
            self._fail_ghosts(study)
        except STORAGE_FAILURES as error:
            raise storage_error(self.storage_url, error) from error
        return study

    def study_name(self, name: str) -> str:
        """Name in the storage."""
        return f"{name}-{self.identity.key}"

    def delete_studies(self) -> None:
        """Forgets all studies of this identity."""
        for name in optuna.get_all_study_names(self.storage):
            if name.endswith(f"-{self.identity.key}"):
                optuna.delete_study(study_name=name, storage=self.storage)

    def path(self, name: str) -> Path:
        """Place of a file of this identity, for example ``path("traces.safetensors")``."""
        return self.folder / f"{self.identity.key}-{name}"

    def write_json(self, name: str, content: Any) -> None:
        """Stores a small result, for example under ``costs.json``; the old one survives a failure.

        Raises:
            SelfspecError: It cannot be written.
        """
        write_atomically(self.path(name), json.dumps(content).encode())

    def read_json(self, name: str) -> Any:
        """What `write_json` stored, or None if there is nothing."""
        path = self.path(name)
        return json.loads(path.read_bytes()) if path.exists() else None

    def _fail_ghosts(self, study: optuna.Study) -> None:
        """The folder's lock is ours, so whoever left a trial running here is dead; elsewhere that is not known."""
        for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
            process = str(trial.user_attrs.get(PROCESS_ATTRIBUTE, ""))
            host = process.partition(":")[0]
            if not is_file(self.storage_url) and host not in ("", socket.gethostname()):
                message = (
                    f"Process {process} is working on this calibration. Wait until it is done, or, if it no longer "
                    "exists, add --restart."
                )
                raise UsageError(message)
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)


def this_process() -> str:
    """Value of `PROCESS_ATTRIBUTE`: host and number, so that a trial left running can be told to be a ghost."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"The folder {folder} cannot be created ({error.strerror}). Choose another --output."
        raise UsageError(message) from error


def _empty(folder: Path) -> None:
    """Removes everything but the lock, which is held."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != LOCK_NAME:
            path.unlink()


def _announce(folder: Path, identity: StudyIdentity, listener: events.Listener) -> None:
    """Says whether the folder's latest calibration is continued, and remembers this one as the latest."""
    path = folder / _IDENTITY
    latest = _read_identity(path)
    if latest is not None:
        listener(events.Noted(_notice(folder, latest, identity)))
    write_atomically(path, identity.model_dump_json(indent=1).encode())


def _read_identity(path: Path) -> StudyIdentity | None:
    try:
        return StudyIdentity.model_validate_json(path.read_bytes())
    except (OSError, ValueError):  # there is none, or it is of a version that is not understood
        return None


def _notice(folder: Path, latest: StudyIdentity, identity: StudyIdentity) -> str:
    if latest.key == identity.key:
        return f"Going on with the calibration in {folder}; --restart begins anew."
    changed = ", ".join(identity.differences(latest))
    return f"{folder} holds another calibration (changed: {changed}): a new one begins, and the old one is kept."


def _check_direction(study: optuna.Study, direction: str) -> None:
    found = study.direction.name.lower()
    if found != direction:
        message = f"The study {study.study_name} was made to {found}, not to {direction}. Add --restart to begin anew."
        raise SelfspecError(message)
