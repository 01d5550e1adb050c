from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.support.calibrations import MACHINE

from selfspec.cli.doctor import machine_sheet
from selfspec_runtime.native.library import NativeStatus

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.command_line import CommandLine


def test_the_machine_is_described(selfspec_command: CommandLine) -> None:
    run = selfspec_command("doctor", "--format", "json")
    assert run.code == 0
    facts = {row["fact"]: row["value"] for row in json.loads(run.out)["machine"]["rows"]}
    assert {"cpu", "torch", "transformers", "python", "num threads", "device"} <= set(facts)


def test_a_model_is_proved(selfspec_command: CommandLine, tiny_folder: Path) -> None:
    run = selfspec_command("doctor", "-m", tiny_folder, "--device", "cpu")
    assert run.code == 0
    assert "LlamaForCausalLM" in run.out
    assert "an exit after layer 3, resumed, equals the full pass" in run.out
    assert "the model's modules are as before" in run.out


def test_a_model_that_is_wired_wrongly_ends_with_1(
    selfspec_command: CommandLine, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from selfspec_runtime.stubs import HandIn

    monkeypatch.setattr(HandIn, "forward", lambda self, hidden, *args, **kwargs: self.shaped(hidden))
    run = selfspec_command("doctor", "-m", tiny_folder)
    assert run.code == 1
    assert "The wiring probe failed for LlamaForCausalLM" in run.err


def test_a_slow_cpu_and_a_missing_library_are_advised_on() -> None:
    notes = " ".join(machine_sheet(MACHINE).notes)
    assert "neither AVX512_BF16 nor AMX" in notes
    assert "bitsandbytes is not installed" in notes
    fast = MACHINE.model_copy(update={"avx512_bf16": True, "bitsandbytes": "0.50"})
    assert machine_sheet(fast).notes == ()


def test_it_says_which_kernels_run_on_a_cpu(selfspec_command: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "no C++ compiler was found"
    monkeypatch.setattr("selfspec_runtime.native.library.native_status", lambda: NativeStatus(None, reason))
    run = selfspec_command("doctor", "--device", "cpu", "--format", "json")
    facts = {row["fact"]: row["value"] for row in json.loads(run.out)["machine"]["rows"]}
    assert facts["cpu kernels"] == f"none: {reason}; oneDNN's products run instead"
