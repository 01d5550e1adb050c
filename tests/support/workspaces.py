"""Workspaces for tests that need no model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna

from selfspec_calibrate.events import Event
from selfspec_calibrate.settings import CalibrationSettings
from selfspec_calibrate.workspace import Workspace
from selfspec_runtime.fingerprint import ModelFingerprint
from selfspec_runtime.model_spec import ModelSpec

FINGERPRINT = ModelFingerprint(
    architecture="LlamaForCausalLM",
    num_hidden_layers=4,
    hidden_size=64,
    vocab_size=128,
    config_sha256="c",
    weights_sha256="w",
    tokenizer_sha256="t",
    dtype="float32",
)


def calibration_settings(folder: Path, **changes: Any) -> CalibrationSettings:
    values = {"model": ModelSpec(model="tiny"), "prompts": folder / "prompts.jsonl", "output": folder / "out.json"}
    return CalibrationSettings(**{**values, **changes})


def workspace_in(
    folder: Path, heard: list[Event] | None = None, *, prompts_sha256: str = "p", **changes: Any
) -> AbstractContextManager[Workspace]:
    """The workspace of ``folder/out.json``; ``changes`` replace settings."""
    listener = (heard if heard is not None else []).append
    return Workspace.open(calibration_settings(folder, **changes), FINGERPRINT, prompts_sha256, listener=listener)


@contextmanager
def fast_workspace_in(folder: Path) -> Iterator[Workspace]:
    """A workspace whose studies are in memory: they last as long as the workspace, and take no disk's time."""
    with workspace_in(folder) as workspace:
        yield replace(workspace, storage=optuna.storages.InMemoryStorage())
