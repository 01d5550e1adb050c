"""Every launch is one that Triton binds for CUDA, which its interpreter does not ask for: names, tuples, constants."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from selfspec_runtime.kernels.row_law import law_params, row_laws
from selfspec_runtime.sampling import SamplingSettings

pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from selfspec_runtime.kernels import attention_kernels, best_kernels, draw_kernels, law_kernels, verdicts
from selfspec_runtime.kernels.decode_attention import decode_attention

MODULES = (attention_kernels, best_kernels, draw_kernels, law_kernels)


class Bound:
    """Stands in for a kernel: binds what it is launched with, and runs nothing.

    Args:
        function: The kernel's body.
    """

    def __init__(self, function: Any) -> None:
        jit = JITFunction(function)
        self.names = [parameter.name for parameter in jit.params]
        self.types: list[dict[str, Any]] = []
        self._bind = create_function_from_signature(jit.signature, jit.params, make_backend(GPUTarget("cuda", 90, 32)))

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        assert all(number > 0 for number in grid)
        return self._launched

    def _launched(self, *args: Any, **kwargs: Any) -> None:
        bound, specialization, options = self._bind(*args, **kwargs)
        assert list(bound) == self.names
        assert set(options) == {"num_warps", "enable_fp_fusion"}
        self.types.append(dict(zip(self.names, (kind for kind, *_ in specialization), strict=True)))


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> dict[str, Bound]:
    """Every kernel by its name, in place of those that are launched."""
    kernels = {}
    for module in MODULES:
        for name in [name for name in vars(module) if name.endswith("_kernel")]:
            kernels[name] = Bound(getattr(module, name).fn)
            monkeypatch.setattr(module, name, kernels[name])
    return kernels


def test_every_kernel_is_bound_as_it_is_launched(bound: dict[str, Bound]) -> None:
    settings = SamplingSettings(0.8, top_k=5, top_p=0.9)
    logits, number = torch.zeros(4, 300), torch.tensor([5])
    laws = row_laws(logits, law_params(settings, device="cpu"), top_k=True, top_p=True)
    index_of = torch.arange(300, dtype=torch.int32)
    for reduced in ({}, {"token_ids": torch.arange(300), "index_of": index_of}):
        rows = verdicts.LawRows(logits, laws, **reduced)
        verdicts.draft_token(rows, seed=number, position=number, round_start=number)
        for drafted in (torch.arange(3), torch.arange(0)):
            verdicts.rejection_verdict(drafted, rows, rows, seeds=number, first_position=number)
            verdicts.rejection_verdict(drafted, None, rows, seeds=torch.arange(4), first_position=number)
        verdicts.shared_best(rows, seeds=number, first_position=number)
    best = verdicts.largest_best(logits)
    verdicts.tokens_of(best)
    verdicts.prefix_verdict(torch.arange(3), best, laws)
    cached = (torch.zeros(1, heads, length, 16) for heads, length in ((4, 3), (2, 40), (2, 40)))
    decode_attention(*cached, None, scaling=0.25)
    assert {name for name, kernel in bound.items() if not kernel.types} == set()


def test_no_position_is_a_number_of_a_launch(bound: dict[str, Bound]) -> None:
    # A number is fixed when the launch is recorded; what the noise is read from must be read on the device.
    logits, number = torch.zeros(1, 300), torch.tensor([5])
    rows = verdicts.LawRows(logits, torch.zeros(1, 9, dtype=torch.long))
    verdicts.draft_token(rows, seed=number, position=number, round_start=number)
    kinds = bound["draft_kernel"].types[0]
    assert kinds["noise"].position == "*i64"
    assert kinds["noise"].seeds == "*i64"
    assert kinds["round_start"] == "*i64"


def test_a_name_that_tritons_binder_uses_itself_is_noticed() -> None:
    def wrong_kernel(params: Any, out: Any) -> None:
        del params, out

    with pytest.raises(TypeError, match="specialize"):
        Bound(wrong_kernel)[(1,)](torch.zeros(1), torch.zeros(1), num_warps=8, enable_fp_fusion=False)
