"""Drafts through fewer tokens and smaller maps: lossless on several architectures, under processors too."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from tests.support.lossless import Reference, assert_lossless, generate_reference
from tests.support.plans import exit_heads
from tests.support.tiny_models import planted, prompt_ids, tiny_model
from transformers import GenerationConfig

from selfspec_runtime.engine import Engine
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.plan import DraftPlan
from selfspec_runtime.target import Target

PROMPT = prompt_ids(24)
NUM_TOKENS = 60
#: A tied head, windows, a soft-capped one, a scaled one, and one whose layers are laid out otherwise.
FAMILIES = ("qwen3", "mistral", "gemma2", "granite", "gpt2")
SOURCES: dict[str, dict[str, Any]] = {
    "exit": {"kind": "early_exit", "exit_layer": 2, "vocab_size": 50},
    "low rank": {"kind": "early_exit", "exit_layer": 2, "head": "linear", "rank": 3},
    "skip": {"kind": "layer_skip", "skip": {"attention": [3], "mlp": [3]}, "vocab_size": 50},
    "copy": {"kind": "quantized", "quantize_head": True, "vocab_size": 96, "skip": {"mlp": [3]}},
    "first": {"kind": "ngram_first", "then": {"kind": "early_exit", "exit_layer": 2, "vocab_size": 40}},
}


@cache
def half_planted(family: str) -> Target:
    return Target(planted(tiny_model(family), exit_layer=2, scale=0.3))


@cache
def reference(family: str, penalty: float = 1.0) -> Reference:
    options = {} if penalty == 1.0 else {"repetition_penalty": penalty}
    return generate_reference(half_planted(family).model, PROMPT, num_tokens=NUM_TOKENS, **options)


def engine_of(family: str, source: str) -> Engine:
    plan = DraftPlan.model_validate({"source": SOURCES[source], "controller": {"kind": "fixed", "num_draft_tokens": 3}})
    return Engine(half_planted(family), plan=plan, arrays=exit_heads())


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_changes(family: str, source: str) -> None:
    generation = engine_of(family, source).generate(PROMPT, GenerationSettings(max_new_tokens=NUM_TOKENS))
    assert_lossless(generation.token_ids, reference(family))
    assert 0 < generation.stats.num_accepted_tokens < generation.stats.num_draft_tokens


@pytest.mark.parametrize("source", ["exit", "copy"])
def test_a_penalty_meets_tokens_that_the_draft_cannot_say(source: str) -> None:
    config = GenerationConfig(repetition_penalty=1.5)
    settings = GenerationSettings(max_new_tokens=NUM_TOKENS, processors=config)
    generation = engine_of("qwen3", source).generate(PROMPT, settings)
    assert_lossless(generation.token_ids, reference("qwen3", 1.5))
    assert reference("qwen3", 1.5).token_ids != reference("qwen3").token_ids
