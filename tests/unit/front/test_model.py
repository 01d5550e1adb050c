from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.support.calibrations import calibration

import selfspec
from selfspec_runtime.errors import CapacityError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from selfspec import SpeculativeModel

PLANS: list[dict[str, Any]] = [
    {},
    {"source": {"kind": "ngram"}},
    {"source": {"kind": "early_exit", "exit_layer": 3}},
    {"source": {"kind": "layer_skip", "skip": {"mlp": [1]}}},
]


@pytest.mark.parametrize("plan", PLANS)
def test_whatever_the_plan_the_text_is_that_of_generate(tiny_folder: Path, plan: dict[str, Any]) -> None:
    model = selfspec.load(tiny_folder, plan=plan)
    result = model.generate("abc abc", max_new_tokens=24)
    ids = torch.tensor([result.prompt_token_ids])
    stock = model.model.generate(ids, max_new_tokens=24, do_sample=False)[0, ids.shape[1] :]
    assert list(result.token_ids) == stock.tolist()
    assert result.stats.num_emitted_tokens == len(result.token_ids) - 1
    assert result.finish_reason in ("length", "eos")
    assert result.tokens_per_s is not None


def test_the_steps_add_up_to_the_result(ngram_model: SpeculativeModel) -> None:
    steps = list(ngram_model.stream("abc abc", max_new_tokens=16, temperature=0.7, seed=3))
    result = ngram_model.generate("abc abc", max_new_tokens=16, temperature=0.7, seed=3)
    assert "".join(step.text for step in steps) == result.text
    assert tuple(token for step in steps for token in step.token_ids) == result.token_ids
    assert steps[-1].finish_reason == result.finish_reason


def test_match_mode_says_what_plain_decoding_says(ngram_model: SpeculativeModel, tiny_folder: Path) -> None:
    plain = selfspec.load(tiny_folder)
    for seed in range(3):
        options: dict[str, Any] = {"max_new_tokens": 20, "temperature": 0.9, "seed": seed, "mode": "match"}
        assert ngram_model.generate("abc abc", **options).token_ids == plain.generate("abc abc", **options).token_ids


def test_stop_strings_and_criteria_end_the_text(ngram_model: SpeculativeModel) -> None:
    whole = ngram_model.generate("abc", max_new_tokens=24, skip_special_tokens=False)
    stop = whole.text[4:6]
    cut = ngram_model.generate("abc", max_new_tokens=24, stop=stop, skip_special_tokens=False)
    assert cut.finish_reason == "stop"
    assert stop in cut.text
    assert len(cut.token_ids) < len(whole.token_ids)
    length = len(whole.prompt_token_ids) + 5
    by_criterion = ngram_model.generate("abc", max_new_tokens=24, criteria=lambda ids: len(ids) >= length)
    assert (by_criterion.finish_reason, len(by_criterion.token_ids)) == ("criterion", 5)


def test_a_prompt_that_fills_the_context_is_refused(ngram_model: SpeculativeModel) -> None:
    with pytest.raises(CapacityError, match="600 tokens, which fills the model's context of 512"):
        ngram_model.generate([5] * 600)


def test_streaming_refuses_before_the_first_step(ngram_model: SpeculativeModel) -> None:
    with pytest.raises(UsageError, match="2 prompts"):
        ngram_model.stream(["a", "b"])  # type: ignore[arg-type]


def test_a_hotter_run_than_measured_is_noticed(ngram_model: SpeculativeModel) -> None:
    measured = selfspec.SpeculativeModel(ngram_model.loaded, ngram_model.plan, calibration=calibration())
    assert any("measured at greedy" in n for n in measured.generate("a", max_new_tokens=2, temperature=0.5).notices)
    assert measured.generate("a", max_new_tokens=2).notices == ()


def test_a_generation_config_that_cannot_be_followed_is_noticed(
    ngram_model: SpeculativeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ngram_model.model.generation_config, "num_beams", 4)
    fresh = selfspec.SpeculativeModel(ngram_model.loaded)
    assert any("num_beams=4 is overridden" in notice for notice in fresh.generate("a", max_new_tokens=2).notices)


def test_the_plain_engine_shares_the_model(ngram_model: SpeculativeModel) -> None:
    assert ngram_model.plain_engine.target is ngram_model.engine.target
    assert ngram_model.plain_engine.plan.is_plain
    assert not ngram_model.plan.is_plain
