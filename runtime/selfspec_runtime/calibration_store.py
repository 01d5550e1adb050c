"""Saves and loads calibration files: JSON, with fitted arrays in a safetensors file beside it; never pickle."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save

from selfspec_runtime.atomic import write_together
from selfspec_runtime.calibration import SCHEMA_NAME, SCHEMA_VERSION, Calibration
from selfspec_runtime.drafts.early_exit import exit_head_name, fitted_exits
from selfspec_runtime.errors import CalibrationFileError, PlanError
from selfspec_runtime.fingerprint import compare, fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from selfspec_runtime.fingerprint import Mismatch
    from selfspec_runtime.loading import LoadedModel

_MAX_FAULTS = 5
_MAX_DIGITS = 20


@dataclass(frozen=True, kw_only=True)
class LoadedCalibration:
    """A calibration file's content.

    Attributes:
        calibration: The JSON part, checked.
        arrays: Fitted arrays by name.
        path: Where it was read from.
    """

    calibration: Calibration
    arrays: Mapping[str, Tensor]
    path: Path


def save_calibration(path: Path, calibration: Calibration, arrays: Mapping[str, Tensor]) -> Calibration:
    """Writes a calibration file and its arrays, both or neither.

    Args:
        path: The JSON file; the arrays go into a file of the same name that ends in ``.safetensors``.
        calibration: The content.
        arrays: Fitted arrays by name; no file is written where there are none.

    Returns:
        The content as it was written, with the arrays' file name and hash.

    Raises:
        SelfspecError: The files cannot be written; older ones are unchanged.
        CalibrationFileError: The content holds a number that is not finite, or an array is missing.
    """
    _require_arrays(path, calibration, arrays)
    files: dict[Path, bytes] = {}
    beside: Path | None = None
    if arrays:
        beside = path.with_suffix(".safetensors")
        files[beside] = save({name: array.detach().cpu().contiguous() for name, array in arrays.items()})
    changes = {
        "arrays": None if beside is None else beside.name,
        "arrays_sha256": None if beside is None else hashlib.sha256(files[beside]).hexdigest(),
    }
    complete = calibration.model_copy(update=changes)
    files[path] = calibration_json(complete)
    write_together(files)
    return complete


def calibration_json(calibration: Calibration) -> bytes:
    """The JSON part: UTF-8, sorted keys, no NaN.

    Raises:
        CalibrationFileError: A number is not finite.
    """
    content = calibration.model_dump(mode="json")
    try:
        text = json.dumps(content, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        message = f"The calibration holds a number that is not finite ({error}). Please report this."
        raise CalibrationFileError(message) from error
    return (text + "\n").encode("utf-8", "backslashreplace")


def calibration_schema() -> dict[str, Any]:
    """The JSON schema of calibration files."""
    return Calibration.model_json_schema()


def load_calibration(path: Path) -> LoadedCalibration:
    """Reads and checks a calibration file and its arrays.

    Raises:
        CalibrationFileError: It is missing, broken, of another version, or does not go with its arrays.
    """
    content = _parse(path)
    _require_version(path, content)
    try:
        calibration = Calibration.model_validate(content)
    except ValidationError as error:
        raise CalibrationFileError(_faults(path, error)) from error
    _require_consistent(path, calibration)
    arrays = _load_arrays(path, calibration)
    _require_arrays(path, calibration, arrays)
    return LoadedCalibration(calibration=calibration, arrays=arrays, path=path)


def check_fingerprint(calibration: Calibration, loaded: LoadedModel, *, force: bool = False) -> tuple[str, ...]:
    """Compares the model that was calibrated with the one at hand.

    Args:
        calibration: What was found for the first.
        loaded: The second, its weights not fused or repacked yet.
        force: Use the plan also with other weights of the same architecture.

    Returns:
        What differs without forbidding the plan, one sentence each.

    Raises:
        CalibrationFileError: The plan is for another model.
    """
    mismatches = compare(calibration.fingerprint, fingerprint(loaded))
    refused = [m for m in mismatches if m.severity == "refuse" and not (force and m.forceable)]
    if refused:
        raise CalibrationFileError("\n".join(mismatch.message for mismatch in refused))
    return tuple(_forced(mismatch) if mismatch.severity == "refuse" else mismatch.message for mismatch in mismatches)


def _forced(mismatch: Mismatch) -> str:
    fault = mismatch.message.partition(". ")[0]
    return f"{fault}. Its plan is used because it was asked for: the text stays right, the speed was not measured."


def _parse(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise CalibrationFileError(_unreadable(path, error)) from error
    except UnicodeDecodeError as error:
        _fail(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})", "Is it a calibration file?")
    try:
        content = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite, parse_int=_whole)
    except json.JSONDecodeError as error:
        _fail(f"{path}:{error.lineno}: {error.msg.lower()}", "Restore the file, or calibrate again")
    except (ValueError, RecursionError) as error:
        _fail(f"{path}: {error}", "Restore the file, or calibrate again")
    if not isinstance(content, dict) or content.get("schema_name") != SCHEMA_NAME:
        _fail(f"{path} is not a calibration file of selfspec", "Pass the file that `selfspec calibrate` wrote")
    return content


def _unreadable(path: Path, error: OSError) -> str:
    if not path.exists():
        return (
            f"There is no calibration file {path}. Make one: selfspec calibrate --model MODEL --prompts FILE -o {path}"
        )
    return f"{path} cannot be read: {(error.strerror or str(error)).lower()}. Pass the file that calibrate wrote."


def _refuse_constant(name: str) -> NoReturn:
    message = f"{name} is not a number that a calibration can hold"
    raise ValueError(message)


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse_constant(text[:20])


def _whole(text: str) -> int:
    """64 bits are more than anything here counts; a longer number would overflow wherever it is used."""
    return int(text) if len(text) < _MAX_DIGITS else _refuse_constant(f"{text[:20]}...")


def _require_version(path: Path, content: dict[str, Any]) -> None:
    version = content.get("schema_version")
    major = str(version).partition(".")[0]
    if not isinstance(version, str) or not major.isdigit():
        _fail(f"{path}: schema_version is {version!r}", "Restore the file, or calibrate again")
    own = int(SCHEMA_VERSION.partition(".")[0])
    if int(major) > own:
        _fail(f"{path} has the format {version}, and this selfspec reads {own}.x", "Install a newer selfspec")
    if int(major) < own:
        _fail(f"{path} has the old format {version}, and this selfspec reads {own}.x", "Calibrate again")


def _faults(path: Path, error: ValidationError) -> str:
    faults = error.errors(include_url=False, include_input=True)
    lines = [f"{path}: {_field(fault['loc'])}: {fault['msg']}{_given(fault)}" for fault in faults[:_MAX_FAULTS]]
    if len(faults) > _MAX_FAULTS:
        lines.append(f"... and {len(faults) - _MAX_FAULTS} more.")
    return "\n".join([*lines, "Restore the file, or calibrate again."])


def _field(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location) or "the file"


def _given(fault: Any) -> str:
    given = fault.get("input")
    return f" (it is {given!r:.40})" if isinstance(given, str | int | float | bool | None) else ""


def _require_consistent(path: Path, calibration: Calibration) -> None:
    if not 0 <= calibration.chosen < len(calibration.steps):
        count = len(calibration.steps)
        _fail(f"{path}: chosen is {calibration.chosen}, and there are {count} steps", "Restore the file")
    for number, step in enumerate(calibration.steps):
        try:
            step.plan.validate_for(calibration.fingerprint.num_hidden_layers)
        except PlanError as error:
            raise CalibrationFileError(f"{path}: steps.{number}.plan: {error}") from error


def _load_arrays(path: Path, calibration: Calibration) -> dict[str, Tensor]:
    name = calibration.arrays
    if name is None:
        return {}
    if name != Path(name).name or not name.endswith(".safetensors"):
        _fail(f"{path}: arrays is {name!r}, which is not a .safetensors file beside it", "Restore the file")
    beside = path.parent / name
    try:
        data = beside.read_bytes()
    except OSError:
        _fail(f"{path} belongs together with {beside}, which cannot be read", "Copy both files, or calibrate again")
    if hashlib.sha256(data).hexdigest() != calibration.arrays_sha256:
        _fail(f"{beside} is not the file that {path.name} was written with", "Copy both files, or calibrate again")
    try:
        return load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        _fail(f"{beside} is not a safetensors file ({error})", "Calibrate again")


def _require_arrays(path: Path, calibration: Calibration, arrays: Mapping[str, Tensor]) -> None:
    hidden = calibration.fingerprint.hidden_size
    for name in _array_names(calibration):
        if name not in arrays:
            _fail(f"{path}: a plan uses the array {name}, and it is not there", "Calibrate again")
    whole_maps = {exit_head_name(layer) for layer in fitted_exits(arrays)}
    for name in _array_names(calibration):
        if name in whole_maps and tuple(arrays[name].shape) != (hidden, hidden):
            shape = "x".join(map(str, arrays[name].shape))
            _fail(f"{path}: the array {name} is {shape}, the model's width is {hidden}", "Calibrate again")


def _array_names(calibration: Calibration) -> list[str]:
    sources = [step.plan.source for step in calibration.steps if step.plan.source is not None]
    return [name for source in sources for name in source.array_names()]


def _fail(fault: str, remedy: str) -> NoReturn:
    raise CalibrationFileError(f"{fault}. {remedy}{'' if remedy.endswith('?') else '.'}")
