from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from selfspec_runtime.native import toolchain
from selfspec_runtime.native.toolchain import ToolchainError, compiled_kernels


def fake_compiler(folder: Path, script: str) -> str:
    path = folder / "cxx"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


WRITES = 'for last; do :; done; case "$1" in --version) echo fake 1;; *) echo built >> {log}; echo so > "$last";; esac'


def test_kernels_are_compiled_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = cache / "log"
    monkeypatch.setenv("CXX", fake_compiler(cache, WRITES.format(log=log)))
    first, second = compiled_kernels(), compiled_kernels()
    assert first == second
    assert first.read_text() == "so\n"
    assert log.read_text() == "built\n"
    assert [path.name for path in first.parent.iterdir()] == [first.name]


def test_another_compiler_or_processor_compiles_anew(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", fake_compiler(cache, WRITES.format(log=cache / "log")))
    first = compiled_kernels()
    monkeypatch.setattr(toolchain, "_processor", lambda: "another")
    assert compiled_kernels() != first


def test_a_wrapper_and_its_flags_are_run_as_they_are_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, real = cache / "log", cache / "real"
    real.mkdir()
    last = 'for last; do :; done; case "$last" in --version) echo fake;; *) echo so > "$last";; esac'
    compiler = fake_compiler(real, f'echo "$@" >> {log}; {last}')
    wrapper = fake_compiler(cache, 'exec "$@"')
    monkeypatch.setenv("CXX", f"{wrapper} '{compiler}' -DSPACE='a b'")
    assert compiled_kernels().read_text() == "so\n"
    assert all(line.startswith("-DSPACE=a b ") for line in log.read_text().splitlines())


def test_a_machine_without_a_compiler_says_so(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(cache))
    with pytest.raises(ToolchainError, match=r"no C\+\+ compiler was found"):
        compiled_kernels()


def test_a_compiler_that_refuses_is_quoted_and_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = 'case "$1" in --version) echo fake;; *) echo "x.cpp: error: no vectors here" >&2; exit 1;; esac'
    monkeypatch.setenv("CXX", fake_compiler(cache, script))
    with pytest.raises(ToolchainError, match="no vectors here"):
        compiled_kernels()
    assert not any((cache / "cache" / "selfspec").iterdir())


def test_a_cache_folder_that_cannot_be_made_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache / "cache").write_text("a file")
    monkeypatch.setenv("CXX", fake_compiler(cache, "echo fake"))
    with pytest.raises(ToolchainError, match="cache folder"):
        compiled_kernels()


TRIAL = """
import torch
from selfspec_runtime.native.library import native_status
from selfspec_runtime.fast_linear import fast_linear
status = native_status()
made = fast_linear(torch.nn.Linear(64, 64))
print(status.kernels is None, status.reason, type(made).__name__, sep="|")
"""


def test_a_switch_turns_the_kernels_off() -> None:
    environment = {**os.environ, "SELFSPEC_NATIVE": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", TRIAL], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True|SELFSPEC_NATIVE=0 is set|PackedLinear"


def test_models_compute_the_same_without_the_kernels() -> None:
    environment = {**os.environ, "SELFSPEC_NATIVE": "0", "OMP_NUM_THREADS": "1"}
    files = [f"tests/unit/runtime/{name}.py" for name in ("test_packing", "test_quantization")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stdout[-3000:]
