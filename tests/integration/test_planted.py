"""Models made so that the right answer is known: what drafts agree on, and what the shared cache holds."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.support.plans import SOURCES, exit_heads
from tests.support.tiny_models import (
    CONTEXT,
    FAMILIES,
    MAIN_FAMILIES,
    hopeless,
    planted,
    planted_skip,
    prompt_ids,
    tiny_model,
    tiny_target,
)

from selfspec_runtime.acceptance import Verdict
from selfspec_runtime.decoder import Decoder, RunRecord
from selfspec_runtime.engine import Engine
from selfspec_runtime.generation import Generation, GenerationSettings
from selfspec_runtime.plan import DraftPlan
from selfspec_runtime.processors import Processors
from selfspec_runtime.rules import GreedyRule
from selfspec_runtime.sampling import SamplingSettings
from selfspec_runtime.sequence import Sequence
from selfspec_runtime.stopping import StopConditions, Stopper
from selfspec_runtime.target import Target

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec_runtime.cache import KVCache
    from selfspec_runtime.drafts.draft import Draft

PROMPT = prompt_ids(20)
NUM_TOKENS = 41
IDS = torch.tensor(PROMPT)


def decoded(target: Target, source: dict[str, Any], *, num_draft_tokens: int = 4, **sampling: Any) -> Generation:
    plan = DraftPlan.model_validate(
        {"source": source, "controller": {"num_draft_tokens": num_draft_tokens, "kind": "fixed"}}
    )
    settings = GenerationSettings(max_new_tokens=NUM_TOKENS, sampling=SamplingSettings(**sampling))
    return Engine(target, plan=plan, arrays=exit_heads()).generate(PROMPT, settings)


@pytest.mark.parametrize("family", MAIN_FAMILIES)
def test_an_exit_that_equals_the_model_is_always_accepted(family: str) -> None:
    target = Target(planted(tiny_model(family), exit_layer=2))
    for num_draft_tokens in range(1, 9):
        stats = decoded(target, SOURCES["early_exit"], num_draft_tokens=num_draft_tokens).stats
        assert stats.num_accepted_tokens == stats.num_draft_tokens > 0
        assert stats.num_rounds == -(-(NUM_TOKENS - 1) // (num_draft_tokens + 1))


@pytest.mark.parametrize("sampling", [{"mode": "match"}, {"mode": "rejection"}, {"top_p": 0.9}, {"top_k": 20}], ids=str)
def test_an_exit_that_equals_the_model_is_always_accepted_when_sampling(sampling: dict[str, Any]) -> None:
    target = Target(planted(tiny_model("llama"), exit_layer=2))
    for seed in range(5):
        generation = decoded(target, SOURCES["early_exit"], temperature=0.8, seed=seed, **sampling)
        assert generation.stats.acceptance_rate == 1.0


def test_an_exit_above_the_planted_one_is_accepted_and_one_below_is_not() -> None:
    target = Target(planted(tiny_model("llama"), exit_layer=2))
    rates = [decoded(target, {"kind": "early_exit", "exit_layer": k}).stats.acceptance_rate for k in (1, 2, 3)]
    assert rates[0] is not None
    assert rates[0] < 0.7
    assert rates[1:] == [1.0, 1.0]


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt2", "gpt_neox", "qwen3"])
def test_exactly_the_planted_skip_set_is_always_accepted(family: str) -> None:
    planted_set = {"attention": [1, 2], "mlp": [3]}
    target = Target(planted_skip(tiny_model(family), attention=[1, 2], mlp=[3]))
    assert decoded(target, {"kind": "layer_skip", "skip": planted_set}).stats.acceptance_rate == 1.0
    for part in ("attention", "mlp"):
        for layer in set(range(4)) - set(planted_set[part]):
            more = planted_set | {part: [*planted_set[part], layer]}
            rate = decoded(target, {"kind": "layer_skip", "skip": more}).stats.acceptance_rate
            assert rate is not None
            assert rate < 1.0, (part, layer)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_draft_goes_through_the_models_own_norm_head_and_caps(family: str) -> None:
    target = Target(planted(tiny_model(family), exit_layer=2))
    program, _ = target.programs.exit_at(2)
    draft = target.logits(IDS, target.new_cache(), start=0, program=program)
    full = target.logits(IDS, target.new_cache(), start=0)
    torch.testing.assert_close(draft, full, rtol=1e-5, atol=1e-5)
    assert full.std() > 0.1


@pytest.mark.parametrize("family", FAMILIES)
def test_the_cache_after_random_rounds_is_that_of_a_fresh_prefill(family: str) -> None:
    rounds = 200 if family in MAIN_FAMILIES else 40
    assert_cache_is_fresh(tiny_target(family), SOURCES["early_exit"], num_rounds=rounds)


@pytest.mark.parametrize("source", sorted(set(SOURCES) - {"early_exit"}))
def test_the_cache_after_random_rounds_of_any_source(source: str) -> None:
    assert_cache_is_fresh(tiny_target("llama"), SOURCES[source], num_rounds=60)


def test_nothing_guesses_a_hopeless_model() -> None:
    target = Target(hopeless(tiny_model("llama")))
    prompts = [prompt_ids(20, seed=seed) for seed in range(3)]
    rounds, tokens = dict.fromkeys(SOURCES, 0), 3 * 120
    for source in ("ngram", "early_exit", "layer_skip"):
        engine = Engine(target, plan=DraftPlan.model_validate({"source": SOURCES[source]}))
        runs = [engine.generate(prompt, GenerationSettings(max_new_tokens=120)) for prompt in prompts]
        rounds[source] = sum(run.stats.num_rounds for run in runs)
    assert tokens / rounds["ngram"] <= 1.03
    assert tokens / rounds["early_exit"] <= 1.1
    assert tokens / rounds["layer_skip"] <= 1.25


def assert_cache_is_fresh(target: Target, source: dict[str, Any], *, num_rounds: int) -> None:
    plan = DraftPlan.model_validate({"source": source, "controller": {"kind": "fixed", "num_draft_tokens": 2}})
    engine = Engine(target, plan=plan, arrays=exit_heads())
    sequence, cache = Sequence(PROMPT, device=target.device), target.new_cache(capacity=32)
    stopper = Stopper(StopConditions(max_new_tokens=CONTEXT, max_positions=CONTEXT), None)
    decoder = Decoder(target, engine.source, engine.plan.controller.build())
    rounds = decoder.run(sequence, cache, rule=ForcedRule(), stopper=stopper, record=RunRecord())
    accepted = [outcome.num_accepted for _, outcome in zip(range(num_rounds), rounds, strict=False)]
    assert source["kind"] in ("ngram", "suffix") or set(accepted) == {0, 1, 2}
    assert cache.length == len(sequence) - 1
    fresh = target.new_cache()
    target.logits(sequence.tensor()[:-1], fresh, start=0)
    fresh.length = cache.length
    for layer in range(target.num_layers):
        for ours, theirs in zip(cache.layer(layer), fresh.layer(layer), strict=True):
            # Rounds attend by the kernels of few rows, a long prefill by torch's: they add up in other orders.
            assert relative_error(ours, theirs) < 2e-5, layer
    assert torch.equal(next_token(target, sequence, cache), next_token(target, sequence, fresh))


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max() / theirs.abs().max())


def next_token(target: Target, sequence: Sequence, cache: KVCache) -> Tensor:
    return target.logits(sequence.tensor()[-1:], cache, start=sequence.last_position).argmax(dim=-1)


class ForcedRule(GreedyRule):
    """Accepts as many draft tokens as a random number says, then goes on with a random token."""

    def __init__(self) -> None:
        super().__init__(SamplingSettings(), Processors())
        self.random = random.Random(5)

    def _decide(self, draft: Draft, logits: Tensor, position: int) -> Verdict:
        del position
        return Verdict(self.random.randint(0, len(draft)), self.random.randrange(logits.shape[-1]))
