from __future__ import annotations

import pytest
import torch

from selfspec_runtime.errors import UsageError
from selfspec_runtime.precision import choose_device, choose_dtype

F32, F16, BF16, FP8 = torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn


@pytest.mark.parametrize(
    ("stored", "device_type", "fast", "expected", "noticed"),
    [
        (BF16, "cpu", True, BF16, False),
        (BF16, "cpu", False, F32, True),
        (BF16, "cuda", True, BF16, False),
        (BF16, "cuda", False, F32, True),
        (F16, "cpu", True, F32, True),
        (F16, "cpu", False, F32, True),
        (F16, "cuda", True, F16, False),
        (F32, "cpu", True, F32, False),
        (F32, "cuda", True, F32, False),
        (None, "cpu", True, BF16, False),
        (None, "cpu", False, F32, False),
        (FP8, "cuda", True, BF16, False),
    ],
)
def test_auto_keeps_the_checkpoint_exact_and_says_so_when_it_costs(
    stored: torch.dtype | None, device_type: str, fast: bool, expected: torch.dtype, noticed: bool
) -> None:
    dtype, notice = choose_dtype("auto", stored, device_type, fast_bfloat16=fast)
    assert dtype == expected
    assert (notice is not None) == noticed


@pytest.mark.parametrize("requested", ["float32", "float16", "bfloat16"])
def test_what_is_asked_for_is_taken(requested: str) -> None:
    dtype, notice = choose_dtype(requested, BF16, "cpu", fast_bfloat16=False)
    assert dtype == getattr(torch, requested)
    assert notice is None


def test_auto_device_prefers_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfspec_runtime.precision._num_devices", lambda kind: {"xpu": 1, "mps": 1}.get(kind, 0))
    assert choose_device("auto") == torch.device("xpu")
    monkeypatch.setattr("selfspec_runtime.precision._num_devices", lambda _kind: 0)
    assert choose_device("auto") == torch.device("cpu")


def test_devices_that_are_not_here_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfspec_runtime.precision._num_devices", lambda kind: 2 if kind == "cuda" else 0)
    assert choose_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(UsageError, match=r"'cuda:2' is not available here: torch sees 2 cuda devices"):
        choose_device("cuda:2")
    with pytest.raises(UsageError, match=r"sees no xpu device"):
        choose_device("xpu")


@pytest.mark.parametrize("name", ["gpu", "", "cuda:x"])
def test_words_that_are_no_device_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="There is no device"):
        choose_device(name)
