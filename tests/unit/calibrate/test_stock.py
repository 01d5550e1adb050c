from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import count

import pytest
import torch
from tests.support.scripted import ScriptedEngine
from tests.support.tiny_models import build_model, planted, prompt_ids, tiny_config, tiny_model, tiny_target
from transformers import GenerationConfig, PreTrainedModel

from selfspec_calibrate.measurement import MeasuredPrompt, RunMeasurement, measure
from selfspec_calibrate.stock import StockArm, StockVariant
from selfspec_runtime.engine import Engine
from selfspec_runtime.errors import SelfspecError, UsageError
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.sampling import SamplingSettings

PROMPT = MeasuredPrompt("a", "code", tuple(prompt_ids()))
SETTINGS = GenerationSettings(max_new_tokens=12)
SAMPLED = GenerationSettings(max_new_tokens=12, sampling=SamplingSettings(temperature=0.9, top_p=0.9, min_p=0.01))


def _ticks() -> Callable[[], float]:
    """A clock that goes on by one second whenever it is looked at."""
    ticks = count()
    return lambda: float(next(ticks))


def _run(model: PreTrainedModel, settings: GenerationSettings = SETTINGS, **variant: object) -> RunMeasurement:
    return StockArm(model, variant=StockVariant(**variant), clock=_ticks()).measure(PROMPT, settings)


def _own_ids(settings: GenerationSettings = SETTINGS) -> tuple[int, ...]:
    return measure(Engine(tiny_target("llama")), PROMPT, settings, arm="plain").token_ids


def test_greedy_text_and_counts_equal_our_plain_decoding() -> None:
    run = _run(tiny_model("llama"))
    assert run.token_ids == _own_ids()
    assert (run.arm, run.prompt_id, run.kind) == ("stock", "a", "code")
    assert run.num_tokens == run.stats.num_emitted_tokens == run.stats.num_rounds == 11


def test_the_clock_starts_before_the_prompt_and_splits_at_the_first_token() -> None:
    """Looked at: at the start, at each of 12 tokens, and at the end."""
    run = _run(tiny_model("llama"))
    assert run.time_to_first_token_s == 1.0
    assert run.decode_s == 12.0
    assert run.seconds.prefill == 1.0
    assert run.seconds.decode == 12.0


@pytest.mark.parametrize("variant", [{"prompt_lookup_num_tokens": 4}, {"assistant_early_exit": 2}])
def test_transformers_own_drafts_say_the_same_and_leave_the_model_alone(variant: dict[str, int]) -> None:
    model = planted(tiny_model("llama"), exit_layer=2)
    model.generation_config.num_assistant_tokens = 5
    before = copy.deepcopy((model.config.to_dict(), model.generation_config.to_dict()))
    plain, run = _run(model), _run(model, **variant)
    assert run.token_ids == plain.token_ids
    assert run.stats.num_rounds <= plain.stats.num_rounds
    assert (model.config.to_dict(), model.generation_config.to_dict()) == before


def test_tokens_of_the_first_burst_are_not_counted_as_decoded() -> None:
    """A draft that is always right brings several tokens with the prompt's pass."""
    run = _run(planted(tiny_model("llama"), exit_layer=2), assistant_early_exit=2)
    assert run.stats.num_rounds < 11
    assert run.num_tokens < len(run.token_ids) - 1


def test_an_assistant_keeps_its_schedule() -> None:
    assistant = planted(tiny_model("llama"), exit_layer=2)
    assistant.generation_config.num_assistant_tokens = 3
    assistant.generation_config.num_assistant_tokens_schedule = "heuristic"
    run = _run(tiny_model("llama"), assistant_model=assistant)
    assert run.token_ids == _own_ids()
    assert assistant.generation_config.num_assistant_tokens == 3


def test_the_models_own_penalties_count_only_where_they_are_asked_for() -> None:
    model = build_model(tiny_config("llama"))
    model.generation_config.repetition_penalty = 3.0
    assert _run(model).token_ids == _own_ids()
    penalised = GenerationSettings(max_new_tokens=12, processors=model.generation_config)
    assert _run(model, penalised).token_ids == _own_ids(penalised) != _own_ids()
    assert model.generation_config.max_new_tokens is None


def test_what_selfspec_overrides_is_overridden_here_too() -> None:
    odd = GenerationConfig(num_beams=3, use_cache=False, prompt_lookup_num_tokens=3, max_length=7)
    assert _run(tiny_model("llama"), GenerationSettings(max_new_tokens=12, processors=odd)).token_ids == _own_ids()


def test_sampling_is_seeded_and_leaves_the_global_noise_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, second = _run(tiny_model("llama"), SAMPLED), _run(tiny_model("llama"), SAMPLED)
    assert torch.equal(torch.rand(1), expected)
    assert first.token_ids == second.token_ids != _own_ids()


def test_an_end_token_ends_it_as_it_ends_ours() -> None:
    ends = GenerationSettings(max_new_tokens=12, eos_token_ids=(_own_ids()[4], 3))
    assert _run(tiny_model("llama"), ends).token_ids == _own_ids(ends)
    assert len(_own_ids(ends)) <= 5


def test_a_criterion_ends_it_as_it_ends_ours() -> None:
    ends = GenerationSettings(max_new_tokens=12, criteria=(lambda ids: len(ids) == len(PROMPT.token_ids) + 3,))
    run = _run(tiny_model("llama"), ends)
    assert run.token_ids == _own_ids(ends)
    assert len(run.token_ids) == 3


def test_a_single_token_takes_no_decoding() -> None:
    run = _run(tiny_model("llama"), GenerationSettings(max_new_tokens=1))
    assert (run.num_tokens, run.stats.num_rounds) == (0, 0)


def test_what_transformers_refuses_is_an_error_with_a_name() -> None:
    with pytest.raises(SelfspecError, match="transformers' generate cannot"):
        _run(tiny_model("llama"), GenerationSettings(max_new_tokens=4, stop=("x",)))


def test_two_drafts_at_a_time_are_refused() -> None:
    with pytest.raises(UsageError, match="one way at a time"):
        StockVariant(prompt_lookup_num_tokens=3, assistant_early_exit=1)


def test_it_is_an_arm_like_any_other() -> None:
    scripted = measure(ScriptedEngine(), PROMPT, SETTINGS, arm="x")
    assert set(vars(scripted)) == set(vars(_run(tiny_model("llama"))))
