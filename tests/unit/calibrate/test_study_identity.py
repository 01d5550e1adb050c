from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.workspaces import FINGERPRINT, calibration_settings

from selfspec_calibrate import study_identity
from selfspec_calibrate.settings import CalibrationSettings, option_of
from selfspec_calibrate.study_identity import StudyIdentity, identify
from selfspec_runtime.machine import cpu_name
from selfspec_runtime.model_spec import ModelSpec

HERE = Path("somewhere")


def _identity(**changes: Any) -> StudyIdentity:
    return identify(calibration_settings(HERE, **changes), FINGERPRINT, "p")


WITH_EFFECT: dict[str, Any] = {
    "budget_s": 60.0,
    "max_new_tokens": 32,
    "held_out_fraction": 0.3,
    "limit": 7,
    "temperature": 0.7,
    "top_k": 5,
    "top_p": 0.9,
    "min_p": 0.1,
    "seed": 1,
    "families": ("ngram",),
    "max_draft_tokens": 4,
    "system": "Be brief.",
    "prompt_field": "q",
    "skip_bad_lines": True,
    "template_kwargs": {"enable_thinking": False},
}
WITHOUT_EFFECT: dict[str, Any] = {
    "model": ModelSpec(model="elsewhere"),
    "prompts": Path("moved.jsonl"),
    "output": Path("b.json"),
    "max_trials": 3,
    "also_temperatures": (0.7,),
    "max_extra_memory": "30%",
    "require_speedup": 1.2,
    "storage": "sqlite:///x.db",
    "restart": True,
}


def test_every_setting_is_known_to_have_an_effect_or_none() -> None:
    assert {*WITH_EFFECT, *WITHOUT_EFFECT} == set(CalibrationSettings.model_fields)


@pytest.mark.parametrize("name", WITH_EFFECT)
def test_a_setting_that_changes_measurements_changes_the_key_and_is_named(name: str) -> None:
    changed = _identity(**{name: WITH_EFFECT[name]})
    assert changed.key != _identity().key
    assert changed.differences(_identity()) == (option_of(name),)


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_any_other_setting_does_not(name: str) -> None:
    assert _identity(**{name: WITHOUT_EFFECT[name]}).key == _identity().key


def test_model_prompts_machine_and_search_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, base = calibration_settings(HERE), _identity()
    weights = identify(settings, FINGERPRINT.model_copy(update={"weights_sha256": "v"}), "p")
    prompts = identify(settings, FINGERPRINT, "q")
    packed = _identity(model=ModelSpec(model="tiny", pack=False))
    eager = _identity(model=ModelSpec(model="tiny", executor="eager"))
    monkeypatch.setattr("torch.get_num_threads", lambda: 99)
    threads = identify(settings, FINGERPRINT, "p")
    space = base.model_copy(update={"space_version": study_identity.SPACE_VERSION + 1})
    found = [other.differences(base) for other in (weights, packed, eager, prompts, threads, space)]
    assert found == [
        ("the model",),
        ("the model",),
        ("the model",),
        ("the prompts",),
        ("this machine or its software",),
        ("selfspec's search",),
    ]
    assert len({identity.key for identity in (base, weights, packed, eager, prompts, threads, space)}) == 7


def test_the_key_survives_the_file() -> None:
    identity = _identity(template_kwargs={"b": 1, "a": 2})
    assert StudyIdentity.model_validate_json(identity.model_dump_json()).key == identity.key
    assert len(identity.key) == 16


def test_on_a_processor_the_compiled_kernels_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def keys(device: str) -> set[str]:
        found = set()
        for kernels in (None, object()):
            monkeypatch.setattr(
                study_identity, "native_status", lambda kernels=kernels: SimpleNamespace(kernels=kernels)
            )
            where = FINGERPRINT.model_copy(update={"device": device})
            found.add(identify(calibration_settings(HERE), where, "p").key)
        return found

    assert len(keys(cpu_name())) == 2
    assert len(keys("NVIDIA H200")) == 1
