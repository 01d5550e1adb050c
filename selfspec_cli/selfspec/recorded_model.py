"""The model that a calibration file records: found where it went together with the file, or asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from selfspec_runtime.errors import ModelError

if TYPE_CHECKING:
    from selfspec_runtime.calibration_store import LoadedCalibration
    from selfspec_runtime.model_spec import ModelSpec


def recorded_model(stored: LoadedCalibration) -> str:
    """The recorded name or folder, or where the folder went together with the calibration file."""
    model, file = stored.calibration.model.model, stored.path
    beside = (file.parent, file.parent / Path(model).name)
    if _is_gone(model):
        return next((str(folder) for folder in beside if (folder / "config.json").is_file()), model)
    return model


def require_recorded(spec: ModelSpec, stored: LoadedCalibration | None) -> None:
    """Refuses a recorded folder that is not there any more, before the model's own error speaks of a path nobody named.

    Args:
        spec: What is to be loaded.
        stored: The calibration file that may have said so, or None.

    Raises:
        ModelError: It is the file's folder, and it is gone.
    """
    if stored is not None and spec.model == stored.calibration.model.model and _is_gone(spec.model):
        message = (
            f"{stored.path} records that its model lies in {spec.model}, and nothing is there. Say where it is with "
            "--model, or in Python with selfspec.load(model, plan=file)."
        )
        raise ModelError(message)


def _is_gone(model: str) -> bool:
    return Path(model).is_absolute() and not Path(model).exists()
