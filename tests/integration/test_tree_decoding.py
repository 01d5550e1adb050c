"""Decoding with side branches: nothing changes but the number of rounds, and what is counted is what happened."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.support.faults import interrupted, module_tree
from tests.support.lossless import Reference, assert_lossless, generate_reference
from tests.support.tiny_models import CONTEXT, planted, prompt_ids, tiny_model
from transformers import GenerationConfig

from selfspec.views.trace_words import acceptance_by_place
from selfspec_runtime.acceptance import Verdict
from selfspec_runtime.cache import KVCache
from selfspec_runtime.decoder import Decoder, RunRecord
from selfspec_runtime.engine import Engine
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.plan import DraftPlan
from selfspec_runtime.processors import Processors
from selfspec_runtime.rules import GreedyRule
from selfspec_runtime.sampling import SamplingSettings
from selfspec_runtime.sequence import Sequence
from selfspec_runtime.stopping import StopConditions, Stopper
from selfspec_runtime.target import Target
from selfspec_runtime.tracing import trace_generation

if TYPE_CHECKING:
    from collections.abc import Sequence as Ids

    from selfspec_runtime.drafts.draft import Draft
    from selfspec_runtime.step import SpeculativeStep

PROMPT = prompt_ids(24)
CHAINS: dict[str, dict[str, Any]] = {
    "resumed": {"kind": "early_exit", "exit_layer": 2},
    "in full": {"kind": "layer_skip", "skip": {"attention": [1, 3], "mlp": [3]}},
}
#: Sliding windows in all layers and in some, learned positions.
FAMILIES = ("llama", "mistral", "gemma3_text", "gpt2")


@cache
def target_of(family: str) -> Target:
    """A model whose last two layers say little, so that the draft's second choice is right at times."""
    return Target(planted(tiny_model(family), exit_layer=2, scale=0.3))


@cache
def reference(family: str, num_tokens: int) -> Reference:
    return generate_reference(target_of(family).model, PROMPT, num_tokens=num_tokens)


def engine_of(family: str, chain: str, *, num_draft_tokens: int = 4, max_branches: int = 4) -> Engine:
    source = {"kind": "tree", "chain": CHAINS[chain], "max_branches": max_branches, "branch_threshold": 1.0}
    controller = {"kind": "fixed", "num_draft_tokens": num_draft_tokens}
    return Engine(target_of(family), plan=DraftPlan.model_validate({"source": source, "controller": controller}))


def said(steps: Ids[SpeculativeStep]) -> tuple[int, ...]:
    return tuple(token for step in steps for token in step.token_ids)


def num_taken(steps: Ids[SpeculativeStep]) -> int:
    return sum(step.accepted_branch is not None for step in steps)


@pytest.mark.parametrize(("family", "chain"), [("mistral", "in full"), ("gpt2", "resumed"), ("opt", "in full")])
def test_greedy_text_is_the_one_of_generate(family: str, chain: str) -> None:
    settings = GenerationSettings(max_new_tokens=200)
    steps = list(engine_of(family, chain).stream(PROMPT, settings))
    assert_lossless(said(steps), reference(family, 200))
    assert num_taken(steps) >= 5, "too few branches were taken to say anything"


@pytest.mark.parametrize(
    ("family", "chain"),
    [
        ("llama", {"kind": "swift", "skip": {"attention": [1, 3], "mlp": [3]}, "interval": 4}),
        ("llama", {"kind": "clasp", "num_skipped": 1, "interval": 4}),
        ("qwen3_moe", {"kind": "fewer_experts", "num_experts": 1}),
        ("llama", {"kind": "ngram_first", "then": CHAINS["resumed"]}),
    ],
    ids=lambda value: value if isinstance(value, str) else value["kind"],
)
def test_any_source_may_draft_the_chain(family: str, chain: dict[str, Any]) -> None:
    source = {"kind": "tree", "chain": chain, "max_branches": 4, "branch_threshold": 1.0}
    engine = Engine(target_of(family), plan=DraftPlan.model_validate({"source": source}))
    steps = list(engine.stream(PROMPT, GenerationSettings(max_new_tokens=60)))
    assert_lossless(said(steps), reference(family, 60))
    assert num_taken(steps) >= 1


def compact_the_next_slot(cache: KVCache, slots: Ids[int], *, start: int) -> None:
    KVCache.__dict__["right_compact"](cache, [*slots[:-1], slots[-1] - 1], start=start)


def compact_nothing(cache: KVCache, slots: Ids[int], *, start: int) -> None:
    del cache, slots, start


@pytest.mark.parametrize("wrong", [compact_the_next_slot, compact_nothing])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_wrong_compaction_is_caught(family: str, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KVCache, "right_compact", KVCache.compact, raising=False)
    monkeypatch.setattr(KVCache, "compact", wrong)
    assert cache_error(family, num_rounds=12) > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_the_cache_after_tree_rounds_is_that_of_a_fresh_prefill(family: str) -> None:
    assert cache_error(family, num_rounds=50) < 1e-5


def cache_error(family: str, *, num_rounds: int) -> float:
    """Largest relative distance from a prefill's keys and values, after rounds that take branches as often as not."""
    target, rule = target_of(family), ForcedRule()
    sequence, cache = Sequence(PROMPT, device=target.device), target.new_cache(capacity=32)
    engine = engine_of(family, "resumed" if family == "llama" else "in full", num_draft_tokens=3)
    stopper = Stopper(StopConditions(max_new_tokens=CONTEXT, max_positions=CONTEXT), None)
    decoder = Decoder(target, engine.source, engine.plan.controller.build())
    rounds = decoder.run(sequence, cache, rule=rule, stopper=stopper, record=RunRecord())
    found = [outcome for _, outcome in zip(range(num_rounds), rounds, strict=False)]
    assert num_rounds / 4 < sum(outcome.branch is not None for outcome in found)
    assert cache.capacity > 32, "the cache grew on the way"
    assert cache.length == len(sequence) - 1
    fresh = target.new_cache()
    target.logits(sequence.tensor()[:-1], fresh, start=0)
    fresh.length = cache.length
    pairs = (pair for layer in range(4) for pair in zip(cache.layer(layer), fresh.layer(layer), strict=True))
    return max(float((ours - theirs).abs().max() / theirs.abs().max()) for ours, theirs in pairs)


class ForcedRule(GreedyRule):
    """Rejects at a random place, half of the time in favour of a branch."""

    def __init__(self) -> None:
        super().__init__(SamplingSettings(), Processors())
        self.random = random.Random(5)

    def _decide(self, draft: Draft, logits: torch.Tensor, position: int) -> Verdict:
        del position
        branch = self.random.choice([None, *draft.branches]) if self.random.random() < 0.7 else None
        if branch is not None:
            return Verdict(branch.place, branch.token_id)
        return Verdict(self.random.randint(0, len(draft)), self.random.randrange(logits.shape[-1]))


@pytest.mark.parametrize("penalty", [None, 1.5])
@pytest.mark.parametrize("chain", CHAINS)
def test_in_match_mode_the_text_is_the_one_of_plain_decoding(chain: str, penalty: float | None) -> None:
    config = None if penalty is None else GenerationConfig(repetition_penalty=penalty)
    taken = 0
    for seed in range(2):
        sampling = SamplingSettings(0.8, top_k=30, seed=seed, mode="match")
        settings = GenerationSettings(max_new_tokens=60, sampling=sampling, processors=config)
        steps = list(engine_of("llama", chain).stream(PROMPT, settings))
        taken += num_taken(steps)
        assert said(steps) == Engine(target_of("llama")).generate(PROMPT, settings).token_ids
    assert taken >= 2


@pytest.mark.parametrize("options", [{"repetition_penalty": 1.5}, {"no_repeat_ngram_size": 2}], ids=str)
def test_a_branchs_row_is_processed_with_its_own_path(options: dict[str, float]) -> None:
    wanted = generate_reference(target_of("llama").model, PROMPT, num_tokens=120, **options)
    settings = GenerationSettings(max_new_tokens=120, processors=GenerationConfig(**options))
    steps = list(engine_of("llama", "in full").stream(PROMPT, settings))
    assert_lossless(said(steps), wanted)
    assert num_taken(steps) >= 3


def test_a_text_may_end_at_any_token_of_a_path() -> None:
    engine, settings = engine_of("llama", "in full"), GenerationSettings(max_new_tokens=120)
    whole = list(engine.stream(PROMPT, settings))
    places, at = set(), 0
    for step in whole:
        if step.accepted_branch is not None:
            places |= set(range(at, at + len(step.token_ids)))
        at += len(step.token_ids)
    for place in sorted(places)[:10]:
        criterion = Stop(len(PROMPT) + place + 1)
        steps = list(engine.stream(PROMPT, replace(settings, criteria=(criterion,))))
        assert said(steps) == said(whole)[: place + 1]
        last = steps[-1]
        assert last.finish_reason == "criterion"
        assert last.num_accepted <= len(last.token_ids)
        assert (
            last.accepted_branch is None
            or last.drafted_ids[len(last.drafted_ids) - len(last.branch_places) + last.accepted_branch]
            == last.token_ids[last.num_accepted - 1]
        )


class Stop:
    """Ends a text at a length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, ids: list[int]) -> bool:
        return len(ids) == self.length


@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral"])
def test_the_context_fills_up(family: str) -> None:
    for left in (3, 8):
        prompt = prompt_ids(CONTEXT - left)
        wanted = generate_reference(target_of(family).model, prompt, num_tokens=left)
        steps = list(engine_of(family, "resumed").stream(prompt, GenerationSettings(max_new_tokens=100)))
        assert_lossless(said(steps), wanted)
        assert steps[-1].finish_reason == "length"


@pytest.mark.parametrize("chain", CHAINS)
def test_what_is_counted_is_what_happened(chain: str) -> None:
    engine, settings, record = engine_of("llama", chain), GenerationSettings(max_new_tokens=90), RunRecord()
    steps = list(engine.stream(PROMPT, settings, record=record))
    stats = record.stats
    assert num_taken(steps) >= 2
    assert stats.num_draft_tokens == sum(step.num_drafted for step in steps)
    assert stats.num_draft_tokens > stats.num_draft_passes, "branches are counted, and cost no pass"
    assert stats.num_accepted_tokens == sum(step.num_accepted for step in steps)
    assert stats.num_emitted_tokens == len(said(steps)) - 1
    assert len(stats.num_accepted_tokens_per_pos) == 4
    assert sum(stats.num_accepted_tokens_per_pos) == stats.num_accepted_tokens
    for step in steps:
        assert path_of(step)[: step.num_accepted] == step.token_ids[: step.num_accepted]


def path_of(step: SpeculativeStep) -> tuple[int, ...]:
    chain = step.drafted_ids[: step.num_drafted - len(step.branch_places)]
    if step.accepted_branch is None:
        return chain
    place = step.branch_places[step.accepted_branch]
    return (*chain[:place], step.drafted_ids[len(chain) + step.accepted_branch])


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_trace_tells_the_same_run(temperature: float) -> None:
    sampling = SamplingSettings(temperature, seed=1)
    settings = GenerationSettings(max_new_tokens=60, sampling=sampling)
    engine, record = engine_of("llama", "in full"), RunRecord()
    steps = list(engine.stream(PROMPT, settings, record=record))
    trace = trace_generation(engine, PROMPT, settings)
    assert tuple(trace.token_ids.tolist()) == said(steps)
    assert trace.stats() == record.stats
    assert [each.accepted_branch for each in trace.rounds] == [step.accepted_branch for step in steps]
    places = acceptance_by_place(trace)
    assert sum(drafted for _, drafted, _ in places) == record.stats.num_draft_tokens
    assert [accepted for _, _, accepted in places] == record.stats.num_accepted_tokens_per_pos
    for each in trace.rounds[1:]:
        assert len(each.fates()) == each.num_tokens
        assert len(each.draft_probs) == each.num_drafted
        if each.accepted_branch is not None:
            own = each.draft_probs[len(each.drafted_per_place) + each.accepted_branch]
            assert each.accepted_probs[-1] == own
            assert each.fates()[-1] in ("bonus", "accepted")
            assert not each.rejected_ids
        elif each.was_corrected:
            assert each.rejected_ids[0] == each.drafted_ids[each.num_accepted]
            wrong = trace.token_ids[each.start + each.num_accepted]
            beside = zip(each.branch_places, each.drafted_ids[len(each.drafted_per_place) :], strict=True)
            assert (each.num_accepted, wrong) not in set(beside)


def test_ctrl_c_while_a_branch_is_taken_leaves_a_cache_that_goes_on() -> None:
    engine, settings = engine_of("llama", "in full"), GenerationSettings(max_new_tokens=10)
    whole = list(engine.stream(PROMPT, settings))
    assert num_taken(whole) >= 1, "no branch is taken here"
    with interrupted(None) as points:
        list(engine.stream(PROMPT, settings))
    for number in random.Random(0).sample(range(points[0]), 25):
        tree, cache = module_tree(engine.target.model), engine.target.new_cache()
        try:
            with interrupted(number):
                list(engine.stream(PROMPT, settings, cache=cache))
        except KeyboardInterrupt:
            pass
        assert module_tree(engine.target.model) == tree
        held = [*PROMPT, *said(whole)][: max(cache.length + 1, len(PROMPT))]
        rest = len(PROMPT) + 10 - len(held)
        if rest > 0:
            again = engine.generate(held, GenerationSettings(max_new_tokens=rest), cache=cache)
            assert (*held, *again.token_ids) == (*PROMPT, *said(whole))
