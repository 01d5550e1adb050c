from __future__ import annotations

import platform
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from selfspec_runtime import machine as module
from selfspec_runtime.machine import Machine, describe_machine, has_amx, has_avx512_bf16, has_fast_bfloat16_cpu

INTEL = "processor\t: 0\nmodel name\t: Some CPU @ 2.40GHz\nflags\t\t: fpu sse2 {flags}\n"
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd {flags}\n"


@pytest.fixture
def cpu_info(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /proc/cpuinfo to write to, on a machine where torch knows nothing more."""
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(module, "_CPU_INFO", path)
    monkeypatch.setattr(module, "_torch_says", lambda _name: False)
    return path


def test_this_machine_is_described() -> None:
    machine = describe_machine("cpu")
    assert machine.cpu
    assert machine.device == machine.cpu
    assert machine.num_threads == torch.get_num_threads()
    assert machine.torch == torch.__version__
    assert machine.python == platform.python_version()
    assert machine.memory_bytes is None or machine.memory_bytes > 2**28
    assert machine.cuda_driver is None
    assert machine.device_memory_bytes is None


def test_threads_are_those_in_use_not_those_present() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert describe_machine("cpu").num_threads == 3
    finally:
        torch.set_num_threads(before)


def test_it_survives_a_file_and_is_frozen() -> None:
    machine = describe_machine("cpu")
    assert Machine.model_validate_json(machine.model_dump_json()) == machine
    with pytest.raises(ValidationError):
        machine.cpu = "another"  # type: ignore[misc]


def test_fields_of_a_later_version_are_kept() -> None:
    later = {**describe_machine("cpu").model_dump(), "temperature_c": 40}
    assert Machine.model_validate(later).model_dump()["temperature_c"] == 40


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (INTEL.format(flags="avx512_bf16 amx_tile amx_bf16"), (True, True, True)),
        (INTEL.format(flags="avx512_bf16"), (True, False, True)),
        (INTEL.format(flags="avx2 avx512f"), (False, False, False)),
        (ARM.format(flags="bf16"), (False, False, True)),
        (ARM.format(flags="asimddp"), (False, False, False)),
        ("", (False, False, False)),
    ],
)
def test_bfloat16_abilities_are_read_from_the_flags(
    cpu_info: Path, text: str, expected: tuple[bool, bool, bool]
) -> None:
    cpu_info.write_text(text)
    assert (has_avx512_bf16(), has_amx(), has_fast_bfloat16_cpu()) == expected


def test_a_system_without_cpu_info_still_has_a_name(cpu_info: Path) -> None:
    assert not cpu_info.exists()
    assert module.cpu_name()


def test_the_cpu_is_called_by_its_model_name(cpu_info: Path) -> None:
    cpu_info.write_text(INTEL.format(flags=""))
    assert module.cpu_name() == "Some CPU @ 2.40GHz"


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.104.05  Release Build",
    ],
)
def test_the_nvidia_driver_is_read_without_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    path = tmp_path / "version"
    path.write_text(line + "\nGCC version: 12.3.0\n")
    monkeypatch.setattr(module, "_NVIDIA_DRIVER", path)
    assert module._cuda_driver() == "535.104.05"
