"""Float32 greedy output equals ``transformers`` generate, token for token, but for ties."""

from __future__ import annotations

from functools import cache

import pytest
from tests.support.lossless import Reference, assert_lossless, generate_reference
from tests.support.plans import CONTROLLERS, SOURCES, exit_heads, plan_of
from tests.support.tiny_models import (
    CONTEXT,
    MAIN_FAMILIES,
    MORE_FAMILIES,
    planted,
    prompt_ids,
    tiny_model,
)
from tests.support.tiny_tokenizer import tiny_tokenizer
from transformers import GenerationConfig

from selfspec_runtime.engine import Engine
from selfspec_runtime.errors import PlanError
from selfspec_runtime.generation import Generation, GenerationSettings
from selfspec_runtime.target import Target

PROMPT = prompt_ids(24)
NUM_TOKENS = 200
WITHOUT_PLAIN_LINEARS = ("falcon",)


@cache
def half_planted(family: str, attention: str | None = None) -> Target:
    """A model whose last two layers say little: drafts are accepted often enough to fill blocks, and not always."""
    return Target(planted(tiny_model(family, attention=attention), exit_layer=2, scale=0.3))


@cache
def reference(family: str, attention: str | None = None, num_tokens: int = NUM_TOKENS) -> Reference:
    return generate_reference(half_planted(family, attention).model, PROMPT, num_tokens=num_tokens)


def decoded(target: Target, source: str, controller: str = "fixed", *, num_tokens: int = NUM_TOKENS) -> Generation:
    engine = Engine(target, plan=plan_of(source, controller), arrays=exit_heads())
    return engine.generate(PROMPT, GenerationSettings(max_new_tokens=num_tokens))


@pytest.mark.parametrize("controller", CONTROLLERS)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("family", MAIN_FAMILIES)
def test_every_source_on_the_main_families(family: str, source: str, controller: str) -> None:
    generation = decoded(half_planted(family), source, controller)
    assert_lossless(generation.token_ids, reference(family))
    assert generation.stats.num_draft_tokens > 0


@pytest.mark.parametrize("family", MORE_FAMILIES)
@pytest.mark.parametrize("source", ["early_exit", "layer_skip", "quantized"])
def test_further_families(family: str, source: str) -> None:
    target = half_planted(family)
    if source == "quantized" and family in WITHOUT_PLAIN_LINEARS:
        with pytest.raises(PlanError):
            decoded(target, source, num_tokens=60)
    else:
        generation = decoded(target, source, num_tokens=60)
        assert_lossless(generation.token_ids, reference(family, None, 60))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt2"])
def test_a_model_may_keep_its_own_attention(family: str, attention: str) -> None:
    target = half_planted(family, attention)
    assert target.parts.attention_implementation == attention
    generation = decoded(target, "early_exit", num_tokens=60)
    assert_lossless(generation.token_ids, reference(family, attention, 60))


@pytest.mark.parametrize("num_tokens", range(1, 8))
def test_a_length_that_ends_inside_a_block(num_tokens: int) -> None:
    for source in SOURCES:
        generation = decoded(half_planted("llama"), source, num_tokens=num_tokens)
        assert generation.token_ids == reference("llama").token_ids[:num_tokens]
        assert generation.finish_reason == "length"


@pytest.mark.parametrize("source", SOURCES)
def test_an_end_of_text_inside_a_block(source: str) -> None:
    said = reference("llama").token_ids
    for position in range(20, 60, 3):
        eos = said[position]
        expected = said[: said.index(eos) + 1]
        settings = GenerationSettings(max_new_tokens=NUM_TOKENS, eos_token_ids=(3, eos))
        engine = Engine(half_planted("llama"), plan=plan_of(source), arrays=exit_heads())
        generation = engine.generate(PROMPT, settings)
        assert generation.token_ids == expected
        assert generation.finish_reason == "eos"
        assert generation.stats.num_emitted_tokens == len(expected) - 1


@pytest.mark.parametrize("source", SOURCES)
def test_stop_strings(source: str) -> None:
    target, tokenizer = half_planted("llama"), tiny_tokenizer()
    text = tokenizer.decode(reference("llama").token_ids)
    engine = Engine(target, tokenizer, plan_of(source), exit_heads())
    for start in (0, 17, 40):
        stop = text[start : start + 5]
        wanted = generate_reference(
            target.model, PROMPT, num_tokens=NUM_TOKENS, stop_strings=[stop], tokenizer=tokenizer
        )
        generation = engine.generate(PROMPT, GenerationSettings(max_new_tokens=NUM_TOKENS, stop=("###", stop)))
        assert generation.token_ids == wanted.token_ids
        assert generation.finish_reason == "stop"
        assert generation.text == tokenizer.decode(wanted.token_ids, skip_special_tokens=True)
        assert stop in generation.text


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
def test_the_context_fills_up(family: str) -> None:
    prompt = prompt_ids(CONTEXT - 11)
    target = half_planted(family)
    wanted = generate_reference(target.model, prompt, num_tokens=11)
    for source in SOURCES:
        engine = Engine(target, plan=plan_of(source), arrays=exit_heads())
        generation = engine.generate(prompt, GenerationSettings(max_new_tokens=100))
        assert_lossless(generation.token_ids, wanted)
        assert generation.finish_reason == "length"


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    "options",
    [{"repetition_penalty": 1.5}, {"no_repeat_ngram_size": 2}, {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3}],
    ids=str,
)
def test_processors_see_the_drafted_prefix(source: str, options: dict[str, float]) -> None:
    target = half_planted("qwen3")
    wanted = generate_reference(target.model, PROMPT, num_tokens=60, **options)
    assert wanted.token_ids != reference("qwen3").token_ids[:60], "the processors change nothing here"
    engine = Engine(target, plan=plan_of(source), arrays=exit_heads())
    settings = GenerationSettings(max_new_tokens=60, processors=GenerationConfig(**options))
    assert_lossless(engine.generate(PROMPT, settings).token_ids, wanted)


@pytest.mark.parametrize("source", SOURCES)
def test_a_cache_may_hold_the_whole_prompt_and_more(source: str) -> None:
    engine = Engine(half_planted("llama"), plan=plan_of(source), arrays=exit_heads())
    settings, cache = GenerationSettings(max_new_tokens=20), engine.target.new_cache(capacity=8)
    for length in (24, 24, 23, 10):
        generation = engine.generate(PROMPT[:length], settings, cache=cache)
        assert generation.token_ids == Engine(engine.target).generate(PROMPT[:length], settings).token_ids
        assert cache.length == length + 19
