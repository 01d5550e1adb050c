"""Requests that cannot be carried out, and that a stream is the generation in pieces."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.byte_tokenizer import byte_tokenizer
from tests.support.plans import SOURCES, exit_heads, plan_of
from tests.support.tiny_models import CONTEXT, build_model, planted, prompt_ids, tiny_config, tiny_target

from selfspec_runtime.decoder import RunRecord
from selfspec_runtime.detokenizer import decode_exactly
from selfspec_runtime.engine import Engine
from selfspec_runtime.errors import CapacityError, NumericalError, PlanError, UsageError
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.plan import PLAIN, DraftPlan
from selfspec_runtime.sampling import SamplingSettings
from selfspec_runtime.step import SpeculativeStep
from selfspec_runtime.target import Target

PROMPT = prompt_ids(9)
PLANS = {"plain": PLAIN, **{source: plan_of(source, "confidence") for source in SOURCES}}
SAMPLING = {
    "greedy": SamplingSettings(),
    "rejection": SamplingSettings(temperature=0.8, seed=5),
    "match": SamplingSettings(temperature=0.8, seed=5, mode="match"),
}
NUM_TOKENS = 14


@pytest.fixture(scope="module")
def target() -> Target:
    """Speaks in bytes, and its drafts are accepted now and then."""
    model = build_model(tiny_config("llama", vocab_size=288))  # the tokenizer's, rounded up as models do
    return Target(planted(model, exit_layer=2, scale=0.3))


@pytest.fixture(scope="module")
def engines(target: Target) -> dict[str, Engine]:
    return {name: Engine(target, byte_tokenizer(), plan, exit_heads()) for name, plan in PLANS.items()}


def accepted_ids(step: SpeculativeStep) -> tuple[int, ...]:
    """The accepted draft tokens: of the chain, and perhaps one of the branches behind it."""
    chain = len(step.drafted_ids) - len(step.branch_places)
    if step.accepted_branch is None:
        return step.drafted_ids[: step.num_accepted]
    return (*step.drafted_ids[: step.num_accepted - 1], step.drafted_ids[chain + step.accepted_branch])


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("plan", PLANS)
def test_a_stream_is_the_generation_in_pieces(plan: str, sampling: str, engines: dict[str, Engine]) -> None:
    settings = GenerationSettings(max_new_tokens=NUM_TOKENS, sampling=SAMPLING[sampling])
    record = RunRecord()
    steps = list(engines[plan].stream(PROMPT, settings, record=record))
    whole = engines[plan].generate(PROMPT, settings)
    assert tuple(token for step in steps for token in step.token_ids) == whole.token_ids
    assert "".join(step.text for step in steps) == whole.text
    assert whole.text == decode_exactly(byte_tokenizer(), list(whole.token_ids), skip_special_tokens=True)
    assert whole.stats == record.stats
    assert [step.round for step in steps] == list(range(len(steps)))
    assert [step.finish_reason for step in steps] == [None] * (len(steps) - 1) + [whole.finish_reason]
    assert whole.finish_reason == "length"
    assert len(whole.token_ids) == NUM_TOKENS


@pytest.mark.parametrize("plan", PLANS)
def test_the_counts_are_those_of_the_steps(plan: str, engines: dict[str, Engine]) -> None:
    record = RunRecord()
    steps = list(engines[plan].stream(PROMPT, GenerationSettings(max_new_tokens=NUM_TOKENS), record=record))
    assert len(steps[0].token_ids) == 1
    assert steps[0].drafted_ids == ()
    later = steps[1:]
    assert record.stats.num_rounds == len(later)
    assert record.stats.num_emitted_tokens == NUM_TOKENS - 1
    assert record.stats.num_draft_tokens == sum(len(step.drafted_ids) for step in later)
    assert record.stats.num_accepted_tokens == sum(step.num_accepted for step in later)
    for step in later:
        assert step.token_ids[: step.num_accepted] == accepted_ids(step)
        assert len(step.token_ids) == step.num_accepted + 1
        assert len(step.drafted_ids) <= PLANS[plan].max_draft_tokens
        assert (step.exit_depth is not None) == (step.origin == "early_exit")


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("num_tokens", [1, 2, 3])
def test_a_short_text_has_exactly_the_tokens_that_were_asked_for(
    source: str, num_tokens: int, engines: dict[str, Engine]
) -> None:
    settings = GenerationSettings(max_new_tokens=num_tokens)
    expected = engines["plain"].generate(PROMPT, settings)
    said = engines[source].generate(PROMPT, settings)
    assert said.token_ids == expected.token_ids
    assert len(said.token_ids) == num_tokens


def test_an_empty_prompt_is_refused(engines: dict[str, Engine]) -> None:
    with pytest.raises(UsageError, match="prompt is empty"):
        engines["plain"].generate([], GenerationSettings())


@pytest.mark.parametrize("length", [CONTEXT, CONTEXT + 1])
def test_a_prompt_that_fills_the_context_is_refused(length: int, engines: dict[str, Engine]) -> None:
    with pytest.raises(CapacityError, match=rf"has {length} tokens, which fills the model's context of {CONTEXT}"):
        engines["plain"].generate([5] * length, GenerationSettings())


@pytest.mark.parametrize("plan", PLANS)
def test_a_text_ends_where_the_context_does(plan: str, engines: dict[str, Engine]) -> None:
    prompt = [*PROMPT] * 60
    said = engines[plan].generate(prompt[: CONTEXT - 3], GenerationSettings(max_new_tokens=50))
    assert said.finish_reason == "length"
    assert len(said.token_ids) == 3


@pytest.mark.parametrize("number", [0, -1])
def test_a_length_that_is_not_positive_is_refused(number: int) -> None:
    with pytest.raises(UsageError, match=f"max_new_tokens is {number}; ask for at least 1"):
        GenerationSettings(max_new_tokens=number)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(UsageError, match="stop string is empty"):
        GenerationSettings(stop=("x", ""))


def test_stop_strings_without_a_tokenizer_are_refused(target: Target) -> None:
    with pytest.raises(UsageError, match="tokenizer"):
        Engine(target).generate(PROMPT, GenerationSettings(stop=("x",)))


def test_without_a_tokenizer_there_are_tokens_and_no_text(target: Target, engines: dict[str, Engine]) -> None:
    settings = GenerationSettings(max_new_tokens=5)
    said = Engine(target).generate(PROMPT, settings)
    assert said.text == ""
    assert said.token_ids == engines["plain"].generate(PROMPT, settings).token_ids


@pytest.mark.parametrize("source", SOURCES)
def test_what_ends_plain_decoding_ends_a_drafted_text_at_the_same_token(
    source: str, engines: dict[str, Engine]
) -> None:
    free = engines["plain"].generate(PROMPT, GenerationSettings(max_new_tokens=NUM_TOKENS)).token_ids
    for place in (0, 3, 7):
        end = len(PROMPT) + place
        endings: list[dict[str, Any]] = [
            {"eos_token_ids": (free[place],)},
            {"criteria": (lambda ids, end=end: len(ids) > end,)},
        ]
        for ending in endings:
            settings = GenerationSettings(max_new_tokens=NUM_TOKENS, **ending)
            said, expected = (engines[name].generate(PROMPT, settings) for name in (source, "plain"))
            assert said.token_ids == expected.token_ids == free[: len(said.token_ids)]
            assert said.finish_reason == expected.finish_reason == ("eos" if "eos_token_ids" in ending else "criterion")
            assert said.text == expected.text


def test_a_cache_that_holds_a_beginning_of_the_prompt_changes_nothing(engines: dict[str, Engine]) -> None:
    engine, settings = engines["early_exit"], GenerationSettings(max_new_tokens=NUM_TOKENS)
    cache = engine.target.new_cache()
    first = engine.generate(PROMPT, settings, cache=cache)
    assert cache.length == len(PROMPT) + NUM_TOKENS - 1
    longer = [*PROMPT, *first.token_ids, 7, 8]
    assert engine.generate(longer, settings, cache=cache).token_ids == engine.generate(longer, settings).token_ids


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"kind": "early_exit", "exit_layer": 4}, "Exit layer 4 does not exist"),
        ({"kind": "layer_skip", "skip": {"mlp": [4]}}, "layers 0 to 3"),
        ({"kind": "early_exit", "exit_layer": 1, "head": "linear"}, "linear head of exit layer 1 is missing"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused_before_anything_runs(source: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Engine(tiny_target("llama"), plan=DraftPlan.model_validate({"source": source}))


def test_a_scheduler_is_not_left_out_in_silence_where_rounds_are_recorded() -> None:
    plan = DraftPlan.model_validate({"source": {"kind": "ngram"}, "scheduler": {"kind": "saguaro"}})
    with pytest.raises(PlanError, match="Use --executor auto or eager"):
        Engine(tiny_target("llama"), plan=plan, executor="cuda_graph")


@pytest.mark.parametrize("sampling", SAMPLING)
def test_logits_that_are_no_numbers_are_an_error_and_not_a_text(sampling: str) -> None:
    model = build_model(tiny_config("llama"))
    with torch.no_grad():
        model.get_output_embeddings().weight.fill_(float("nan"))
    with pytest.raises(NumericalError):
        Engine(Target(model)).generate(PROMPT, GenerationSettings(sampling=SAMPLING[sampling]))


def test_only_what_a_plan_holds_beyond_the_model_is_counted(engines: dict[str, Engine]) -> None:
    held = {name: engine.extra_bytes for name, engine in engines.items()}
    assert [name for name, count in held.items() if count] == ["linear_head", "low_rank", "quantized", "suffix"]
    assert held["linear_head"] == 64 * 64 * 4


def test_a_text_that_fills_the_context_says_so(engines: dict[str, Engine]) -> None:
    full = engines["ngram"].generate(PROMPT, GenerationSettings(max_new_tokens=10 * CONTEXT))
    assert full.finish_reason == "length"
    assert full.notices == (f"The text ends because the model's context of {CONTEXT} is full",)
    assert engines["ngram"].generate(PROMPT, GenerationSettings(max_new_tokens=5)).notices == ()
