from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.support.tiny_models import MAIN_FAMILIES, build_model, tiny_config, tiny_model
from tests.support.tiny_tokenizer import tiny_tokenizer

from selfspec_runtime.errors import WiringError
from selfspec_runtime.pass_input import PassInput
from selfspec_runtime.probe import ProbeCheck, probe, relative_difference
from selfspec_runtime.stock_pass import StockPass
from selfspec_runtime.stubs import HandIn, Silence
from selfspec_runtime.target import Target

if TYPE_CHECKING:
    from torch import Tensor


@pytest.mark.parametrize("family", sorted(MAIN_FAMILIES))
def test_every_family_passes(family: str) -> None:
    report = probe(Target(tiny_model(family)), tiny_tokenizer())
    assert {check.name for check in report.checks} >= {
        "a pass over the shared cache equals a pass without cache",
        "steps over the shared cache equal steps over transformers' cache",
        "an exit after layer 3, resumed, equals the full pass",
        "going on after a rollback equals a fresh start",
        "leaving a sub-layer out changes the logits",
        "the model's modules are as before",
    }
    assert report.num_tokens == 48
    assert report.rounding < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_passes_with_a_wider_tolerance(dtype: torch.dtype) -> None:
    report = probe(Target(copy.deepcopy(tiny_model("llama")).to(dtype)))
    assert 1e-4 < report.rounding < 2e-2
    assert max(check.tolerance for check in report.checks) < 4e-2


def test_a_model_of_one_layer_and_a_short_context_is_probed() -> None:
    model = build_model(tiny_config("llama", num_hidden_layers=1, max_position_embeddings=16))
    assert probe(Target(model)).num_tokens == 10


class OffByOne(StockPass):
    """Continues at positions that are one too high."""

    def _arguments(self, given: PassInput) -> dict[str, Any]:
        arguments = super()._arguments(given)
        arguments["position_ids"] = arguments["position_ids"] + (given.start > 0)
        return arguments


class Blind(StockPass):
    """Hides the newest committed position from a continuation."""

    def _arguments(self, given: PassInput) -> dict[str, Any]:
        arguments = super()._arguments(given)
        if given.start > 0:
            arguments["attention_mask"][..., given.start - 1] = False
        return arguments


@pytest.mark.parametrize("wrong", [OffByOne, Blind])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_wrong_positions_and_masks_are_found(wrong: type[StockPass], dtype: torch.dtype) -> None:
    target = Target(copy.deepcopy(tiny_model("llama")).to(dtype))
    target.passes = wrong(target.parts)
    with pytest.raises(WiringError, match="steps over the shared cache equal steps over transformers' cache") as caught:
        probe(target)
    assert "without cache" not in str(caught.value)
    assert caught.value.exit_code == 1


def test_a_resumption_that_loses_its_hidden_states_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: HandIn, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        return self.shaped(hidden_states)

    monkeypatch.setattr(HandIn, "forward", forward)
    with pytest.raises(WiringError, match=r"(?s)after layer 1, resumed.*after layer 3, resumed") as caught:
        probe(Target(tiny_model("qwen3")))
    assert "rollback" not in str(caught.value)


def test_a_skip_without_effect_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: Silence, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["sublayer"](*args, **kwargs)

    monkeypatch.setattr(Silence, "forward", forward)
    with pytest.raises(WiringError, match="leaving attention and mlp out changes the logits"):
        probe(Target(tiny_model("gpt2")))


def test_a_changed_module_tree_is_found() -> None:
    class Littering(Target):
        def new_cache(self, capacity: int = 256) -> Any:
            if hasattr(self, "full"):
                self.model.add_module("litter", torch.nn.Identity())
            return super().new_cache(capacity)

    with pytest.raises(WiringError, match="the model's modules are as before"):
        probe(Littering(copy.deepcopy(tiny_model("llama"))))


def test_logits_that_are_not_numbers_never_pass() -> None:
    assert not ProbeCheck(name="x", difference=float("nan"), tolerance=1.0).passed


def test_the_difference_is_relative_and_blind_to_a_common_shift() -> None:
    logits = torch.tensor([[1.0, -1.0], [3.0, 1.0]])
    assert relative_difference(logits + 0.5, logits) == pytest.approx(0.5)
    assert relative_difference(10 * logits + 5.0, 10 * logits) == pytest.approx(0.5)
    assert relative_difference(logits, logits) == 0.0
