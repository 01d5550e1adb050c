"""What makes two calibrations the same one, so that a rerun resumes and nothing is mixed up."""

from __future__ import annotations

import hashlib
from importlib import metadata
from typing import TYPE_CHECKING, Any

import torch
from pydantic import BaseModel, ConfigDict

from selfspec_calibrate.settings import option_of
from selfspec_runtime.machine import cpu_name
from selfspec_runtime.native.library import native_status

if TYPE_CHECKING:
    from selfspec_calibrate.settings import CalibrationSettings
    from selfspec_runtime.fingerprint import ModelFingerprint
    from selfspec_runtime.model_spec import ModelSpec

SPACE_VERSION = 4
"""Raised whenever plans, their search or the meaning of a stored measurement change."""

_WITHOUT_EFFECT = frozenset(
    "model prompts output max_trials also_temperatures max_extra_memory require_speedup storage restart".split()
)
"""Settings that change no measurement, or that are identified by content: model and prompts."""

_DISTRIBUTIONS = ("selfspec", "torch", "transformers", "bitsandbytes")


class StudyIdentity(BaseModel):
    """Everything that a stored measurement depends on.

    Attributes:
        model: The model's fingerprint, whether its weights were repacked, and what executes its rounds.
        prompts: Hash of the prompt file's content.
        settings: Settings that change what is measured.
        machine: Number of threads, versions, and whether selfspec's compiled kernels serve the processor; the device is
            part of the model's fingerprint.
        space_version: `SPACE_VERSION` of the program that wrote it.
    """

    model_config = ConfigDict(frozen=True)

    model: dict[str, Any]
    prompts: str
    settings: dict[str, Any]
    machine: dict[str, Any]
    space_version: int = SPACE_VERSION

    @property
    def key(self) -> str:
        """Sixteen hexadecimal digits; part of the names of studies and files."""
        canonical = self.model_dump_json().encode()
        return hashlib.sha256(canonical).hexdigest()[:16]

    def differences(self, other: StudyIdentity) -> tuple[str, ...]:
        """What differs, in words, for example ``the prompts`` or ``--budget``."""
        parts = (
            ("the model", self.model, other.model),
            ("the prompts", self.prompts, other.prompts),
            ("this machine or its software", self.machine, other.machine),
            ("selfspec's search", self.space_version, other.space_version),
        )
        names = sorted({*self.settings, *other.settings})
        changed = [name for name in names if self.settings.get(name) != other.settings.get(name)]
        return (*(name for name, mine, theirs in parts if mine != theirs), *map(option_of, changed))


def identify(settings: CalibrationSettings, fingerprint: ModelFingerprint, prompts_sha256: str) -> StudyIdentity:
    """Takes together what a calibration's measurements depend on.

    Args:
        settings: What the user asked for.
        fingerprint: The loaded model's.
        prompts_sha256: Hash of the prompt file's content.
    """
    return StudyIdentity(
        model=_sorted({**fingerprint.model_dump(mode="json"), **_how_run(settings.model)}),
        prompts=prompts_sha256,
        settings=_sorted(settings.model_dump(mode="json", exclude=set(_WITHOUT_EFFECT))),
        machine=_machine(fingerprint),
    )


def _how_run(spec: ModelSpec) -> dict[str, Any]:
    """What a fingerprint leaves out, since it changes how fast a model is and not what it says."""
    return {"pack": spec.pack, "executor": spec.executor}


def _machine(fingerprint: ModelFingerprint) -> dict[str, Any]:
    on_processor = fingerprint.device == cpu_name()
    return {
        "num_threads": torch.get_num_threads(),
        "native_kernels": on_processor and native_status().kernels is not None,
        **{name: _version(name) for name in _DISTRIBUTIONS},
    }


def _sorted(values: dict[str, Any]) -> dict[str, Any]:
    return dict(sorted(values.items()))


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
