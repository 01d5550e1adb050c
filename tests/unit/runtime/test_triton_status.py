"""Whether kernels can be used, told before anything relies on them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from triton.errors import TritonError

from selfspec_runtime.executors.failure import recording_errors
from selfspec_runtime.kernels import operators, triton_status
from selfspec_runtime.kernels.triton_status import SWITCH, has_triton


@pytest.fixture(autouse=True)
def looked_for_anew() -> Iterator[None]:
    triton_status.triton_status.cache_clear()
    yield
    triton_status.triton_status.cache_clear()


def on_cuda(monkeypatch: pytest.MonkeyPatch, raised: Exception | None) -> None:
    """A machine whose device takes a launch, or does not."""

    def launch(logits: object) -> None:
        if raised is not None:
            raise raised

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)
    monkeypatch.setattr(operators, "greedy_tokens", launch)


def test_it_is_used_where_it_is_installed() -> None:
    assert has_triton()


def test_a_switch_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "0")
    assert not has_triton()
    assert SWITCH in triton_status.triton_status().reason


def test_a_machine_without_it_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_status, "find_spec", lambda name: None)
    assert triton_status.triton_status().reason == "Triton is not installed"


@pytest.mark.parametrize("raised", [RuntimeError("Failed to find C compiler\nand more"), TritonError("no registers")])
def test_a_device_that_refuses_a_launch_has_torch_s_operators(
    monkeypatch: pytest.MonkeyPatch, raised: Exception
) -> None:
    on_cuda(monkeypatch, raised)
    status = triton_status.triton_status()
    assert not status.is_usable
    assert status.reason == f"a kernel cannot be launched: {str(raised).splitlines()[0]}"


def test_a_device_that_takes_a_launch_has_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    on_cuda(monkeypatch, None)
    assert has_triton()


def test_what_a_kernel_raises_ends_a_recording_and_no_program() -> None:
    assert issubclass(TritonError, recording_errors())
