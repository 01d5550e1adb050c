"""What the whole loop emits follows the target's law, for every source and controller; wrong loops are caught.

Three tokens are drawn with the seeds 0..N-1, and a G-test compares their joint law with the enumerated one. The seeds
are fixed, so that a result never changes by itself; had they been drawn at random, the probability that a right loop
fails any of this file's tests would be at most `FALSE_ALARM`, 1e-6 (Bonferroni; each test has 1e-6 over their number).
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
from tests.support.acceptance_suite import FALSE_ALARM, exact_joint, g_test
from tests.support.fake_target import PROMPT_END, FakeTarget
from tests.support.plans import exit_heads
from tests.support.tiny_models import build_model, planted, tiny_config
from tests.support.wrong_loops import (
    RIGHT_RULES,
    RIGHT_SOURCES,
    WRONG_RULES,
    WRONG_SOURCES,
    WRONG_TREE_RULES,
    Changed,
    NextPositionsNoise,
    StatesOfOtherTokens,
)
from transformers import GenerationConfig, LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper

from selfspec_runtime import rules
from selfspec_runtime.decoder import Decoder, Round, RunRecord
from selfspec_runtime.engine import Engine
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.law import token_probs
from selfspec_runtime.plan import PLAIN, DraftPlan
from selfspec_runtime.processors import Processors
from selfspec_runtime.rules import RejectionRule, make_rule
from selfspec_runtime.sampling import SamplingSettings
from selfspec_runtime.sequence import Sequence
from selfspec_runtime.stopping import StopConditions, Stopper
from selfspec_runtime.target import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from selfspec_runtime.rules import AcceptanceRule

SOURCES: dict[str, dict[str, Any]] = {
    "early_exit": {"kind": "early_exit", "exit_layer": 1},
    "linear_head": {"kind": "early_exit", "exit_layer": 1, "head": "linear"},
    "low_rank": {"kind": "early_exit", "exit_layer": 1, "head": "linear", "rank": 5, "vocab_size": 3},
    "layer_skip": {"kind": "layer_skip", "skip": {"attention": [1], "mlp": []}},
    "quantized": {"kind": "quantized", "skip": {"attention": [1]}},
    "ngram": {"kind": "ngram"},
    "suffix": {"kind": "suffix", "corpus": True},
    "ngram_first": {"kind": "ngram_first", "then": {"kind": "early_exit", "exit_layer": 1}},
    "tree": {
        "kind": "tree",
        "chain": {"kind": "early_exit", "exit_layer": 1},
        "max_branches": 6,
        "branch_threshold": 1.0,
    },
}
CONTROLLERS: dict[str, dict[str, Any]] = {
    "fixed 1": {"kind": "fixed", "num_draft_tokens": 1},
    "fixed 3": {"kind": "fixed", "num_draft_tokens": 3},
    "confidence": {"kind": "confidence", "num_draft_tokens": 3, "draft_confidence_threshold": 0.6},
}
SETTINGS = {
    "plain": SamplingSettings(1.0),
    "top-k": SamplingSettings(0.7, top_k=3),
    "top-p": SamplingSettings(1.3, top_p=0.8),
}
TINY_SETTINGS = SamplingSettings(0.9, top_k=2)
"""Few texts can be said, and which ones depends on the whole context: a wrong one shows at once."""
# Every source and every controller meets all settings: a Latin square.
GRID = [
    (source, controller, list(SETTINGS)[(i + j) % len(SETTINGS)])
    for i, source in enumerate(SOURCES)
    for j, controller in enumerate(CONTROLLERS)
]
NUM_TESTS = len(GRID) + len(SOURCES) + 8
"""G-tests that a right loop has to pass: grid, transformer, and the few of plain decoding and of right mutants."""
THRESHOLD = FALSE_ALARM / NUM_TESTS

# After the end comes 0, surely. What follows a 4 was never seen, so that n-grams find nothing after one.
FAKE_PROMPT = [1, 2, 0, 3, 1, 2, 0, 1, PROMPT_END]
TINY_PROMPT = [5, 3, 6, 3, 5]
NUM_TEXTS = 2_000
NUM_WRONG_TEXTS = 600
NUM_TINY_TEXTS = 120
MAX_NEW_TOKENS = 10
"""More than are looked at: the room that is left would else cut every draft to one token."""


def plan_of(source: str | None, controller: str = "fixed 3") -> DraftPlan:
    if source is None:
        return PLAIN
    return DraftPlan.model_validate({"source": SOURCES[source], "controller": CONTROLLERS[controller]})


def fake_engine(source: str | None, controller: str = "fixed 3") -> Engine:
    return Engine(cast("Target", FakeTarget()), plan=plan_of(source, controller), arrays=exit_heads(vocab_size=6))


@cache
def tiny_model(vocab_size: int, attention: str = "selfspec") -> Any:
    """Two layers, the second of which says less, so that drafts from the first are accepted at times."""
    config = tiny_config("llama", vocab_size=vocab_size, num_hidden_layers=2)
    return planted(build_model(config, attention=attention), exit_layer=1, scale=0.5)


@cache
def tiny_target(vocab_size: int) -> Target:
    return Target(tiny_model(vocab_size))


def tiny_engine(source: str | None, *, vocab_size: int, controller: str = "fixed 3") -> Engine:
    return Engine(
        tiny_target(vocab_size),
        plan=plan_of(source, controller),
        arrays=exit_heads(num_layers=2, vocab_size=vocab_size),
    )


@pytest.fixture
def remembered_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computes the law of each block of the table's rows once: it is a function of nothing else."""
    laws: dict[tuple[object, ...], Tensor] = {}

    def remembered(logits: Tensor, settings: SamplingSettings, **options: Any) -> Tensor:
        key = (replace(settings, seed=0), len(logits), logits.numpy().tobytes())
        if key not in laws:
            laws[key] = token_probs(logits, settings, **options)
        return laws[key]

    monkeypatch.setattr(rules, "token_probs", remembered)


def rounds_of(decoder: Decoder, rule: AcceptanceRule, prompt: list[int]) -> Iterator[Round]:
    stopper = Stopper(StopConditions(max_new_tokens=MAX_NEW_TOKENS), None)
    cache = decoder.target.new_cache(capacity=32)
    sequence = Sequence(prompt, device=decoder.target.device)
    return decoder.run(sequence, cache, rule=rule, stopper=stopper, record=RunRecord())


def first_tokens(decoder: Decoder, rule: AcceptanceRule, prompt: list[int], num_tokens: int) -> tuple[int, ...]:
    emitted: list[int] = []
    for outcome in rounds_of(decoder, rule, prompt):
        emitted += outcome.token_ids
        if len(emitted) >= num_tokens:
            break
    return tuple(emitted[:num_tokens])


def fake_p_value(
    decoder: Decoder,
    settings: SamplingSettings,
    *,
    make: Callable[[SamplingSettings, Processors], AcceptanceRule] = make_rule,
    num_texts: int = NUM_TEXTS,
) -> float:
    """The p-value of the three tokens after the first, which is 0 for certain."""
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(num_texts):
        first, *rest = first_tokens(decoder, make(replace(settings, seed=seed), Processors()), FAKE_PROMPT, 4)
        assert first == 0
        counts[tuple(rest)] += 1
    return g_test(counts, exact_joint(cast("FakeTarget", decoder.target).table, settings))


@pytest.mark.usefixtures("remembered_laws")
@pytest.mark.parametrize(("source", "controller", "settings"), GRID)
def test_the_joint_law_is_the_targets(source: str, controller: str, settings: str) -> None:
    assert fake_p_value(fake_engine(source, controller).decoder, SETTINGS[settings]) > THRESHOLD


@pytest.mark.usefixtures("remembered_laws")
@pytest.mark.parametrize(("mode", "source"), [("rejection", None), ("match", None), ("match", "early_exit")])
def test_plain_decoding_and_match_mode_have_it_too(mode: Any, source: str | None) -> None:
    settings = replace(SETTINGS["top-p"], mode=mode)
    assert fake_p_value(fake_engine(source).decoder, settings, num_texts=NUM_WRONG_TEXTS) > THRESHOLD


@pytest.mark.parametrize("source", SOURCES)
def test_the_fake_target_exercises_the_loop(source: str) -> None:
    """Drafts of all lengths, accepted, cut short and rejected: else the law would say little."""
    decoder = fake_engine(source, "confidence").decoder
    drafted: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for seed in range(60):
        for outcome in rounds_of(decoder, make_rule(SamplingSettings(1.0, seed=seed), Processors()), FAKE_PROMPT):
            drafted[len(outcome.draft)] += 1
            accepted[outcome.num_accepted] += 1
    assert {1, 2, 3} <= set(drafted)
    assert {0, 1, 2, 3} <= set(accepted)


@cache
@torch.no_grad()
def tiny_joint() -> dict[tuple[int, ...], float]:
    """The law of three tokens, by one teacher-forced batch of all texts under another attention, in float64."""
    texts = list(itertools.product(range(8), repeat=3))
    ids = torch.tensor([[*TINY_PROMPT, *text] for text in texts])
    logits = tiny_model(8, "eager")(ids).logits[:, len(TINY_PROMPT) - 1 : -1].double().flatten(0, 1)
    warpers = LogitsProcessorList([TemperatureLogitsWarper(TINY_SETTINGS.temperature), TopKLogitsWarper(2)])
    warped = warpers(ids, logits)
    probs = warped.softmax(dim=-1).view(len(texts), 3, 8)
    said = probs.gather(-1, torch.tensor(texts)[..., None])[..., 0].prod(dim=-1)
    return dict(zip(texts, said.tolist(), strict=True))


@pytest.mark.parametrize("source", SOURCES)
def test_the_joint_law_of_a_transformer(source: str) -> None:
    decoder = tiny_engine(source, vocab_size=8).decoder
    counts = Counter(
        first_tokens(decoder, make_rule(replace(TINY_SETTINGS, seed=seed), Processors()), TINY_PROMPT, 3)
        for seed in range(NUM_TINY_TEXTS)
    )
    assert g_test(counts, tiny_joint()) > THRESHOLD


def test_the_transformers_test_can_fail() -> None:
    """A source whose hidden states belong to other tokens, on the real model."""
    decoder = tiny_engine("early_exit", vocab_size=8).decoder
    decoder.source = StatesOfOtherTokens(decoder.source)
    counts = Counter(
        first_tokens(decoder, make_rule(replace(TINY_SETTINGS, seed=seed), Processors()), TINY_PROMPT, 3)
        for seed in range(NUM_TINY_TEXTS)
    )
    assert g_test(counts, tiny_joint()) < FALSE_ALARM


@dataclass(frozen=True)
class MatchCase:
    """How a text is generated in match mode."""

    seed: int
    sampling: SamplingSettings
    penalty: float | None = None

    @property
    def settings(self) -> GenerationSettings:
        config = None if self.penalty is None else GenerationConfig(repetition_penalty=self.penalty)
        sampling = replace(self.sampling, seed=self.seed, mode="match")
        return GenerationSettings(max_new_tokens=40, sampling=sampling, processors=config)


MATCH_CASES = [
    MatchCase(0, SETTINGS["plain"]),
    MatchCase(1, SETTINGS["top-k"]),
    MatchCase(2, SETTINGS["top-p"]),
    MatchCase(3, SETTINGS["plain"], penalty=1.7),
]
MATCH_PROMPT = [4, 9, 17, 9, 4, 9, 30, 12]


@cache
def plain_text(case: MatchCase) -> tuple[int, ...]:
    return tiny_engine(None, vocab_size=64).generate(MATCH_PROMPT, case.settings).token_ids


@pytest.mark.parametrize("case", MATCH_CASES, ids=str)
@pytest.mark.parametrize("source", SOURCES)
def test_match_mode_says_what_plain_decoding_says(source: str, case: MatchCase) -> None:
    controller = list(CONTROLLERS)[case.seed % len(CONTROLLERS)]
    generation = tiny_engine(source, vocab_size=64, controller=controller).generate(MATCH_PROMPT, case.settings)
    assert generation.token_ids == plain_text(case)
    assert generation.stats.num_draft_tokens > 0


def test_match_cases_differ() -> None:
    texts = {plain_text(case) for case in MATCH_CASES}
    texts.add(plain_text(replace(MATCH_CASES[0], seed=3)))  # the penalty changes the text of its seed
    assert len(texts) == len(MATCH_CASES) + 1
    assert all(len(set(text)) > 8 for text in texts)


@pytest.mark.usefixtures("remembered_laws")
@pytest.mark.parametrize("controller", CONTROLLERS)
@pytest.mark.parametrize("source", SOURCES)
def test_match_mode_on_the_fake_target(source: str, controller: str) -> None:
    decoder, plain = fake_engine(source, controller).decoder, fake_engine(None).decoder
    for seed in range(40):
        rule = make_rule(replace(SETTINGS["top-p"], seed=seed, mode="match"), Processors())
        said = first_tokens(decoder, rule, FAKE_PROMPT, MAX_NEW_TOKENS)
        assert said == first_tokens(plain, rule, FAKE_PROMPT, MAX_NEW_TOKENS)


def test_a_match_mode_with_shifted_noise_is_caught() -> None:
    settings = replace(SETTINGS["plain"], mode="match")
    shifted = first_tokens(
        fake_engine("early_exit").decoder, NextPositionsNoise(settings, Processors()), FAKE_PROMPT, 9
    )
    assert shifted != first_tokens(fake_engine(None).decoder, make_rule(settings, Processors()), FAKE_PROMPT, 9)


MUTANT_SETTINGS = SamplingSettings(0.7, top_k=4)


def mutant_decoder(source: str) -> Decoder:
    """Drafts two tokens a round, so that the three looked at hold a bonus, and badly, so that many are corrected."""
    plan = DraftPlan.model_validate({"source": SOURCES[source], "controller": {"kind": "fixed", "num_draft_tokens": 2}})
    return Engine(cast("Target", FakeTarget(seed=0, spread=1.5)), plan=plan).decoder


def rule_p_value(rule: type[RejectionRule], source: str = "layer_skip") -> float:
    return fake_p_value(mutant_decoder(source), MUTANT_SETTINGS, make=rule, num_texts=NUM_WRONG_TEXTS)


def source_p_value(change: type[Changed], source: str) -> float:
    decoder = mutant_decoder(source)
    decoder.source = change(decoder.source)
    return fake_p_value(decoder, MUTANT_SETTINGS, num_texts=NUM_WRONG_TEXTS)


@pytest.mark.usefixtures("remembered_laws")
@pytest.mark.parametrize("rule", WRONG_RULES)
def test_a_wrong_rule_is_rejected(rule: type[RejectionRule]) -> None:
    assert rule_p_value(rule) < FALSE_ALARM


@pytest.mark.usefixtures("remembered_laws")
@pytest.mark.parametrize("rule", WRONG_TREE_RULES)
def test_a_wrong_way_along_a_branch_is_rejected(rule: type[RejectionRule]) -> None:
    assert rule_p_value(rule, "tree") < FALSE_ALARM


@pytest.mark.usefixtures("remembered_laws")
@pytest.mark.parametrize(("change", "source"), WRONG_SOURCES)
def test_a_wrong_source_is_rejected(change: type[Changed], source: str) -> None:
    assert source_p_value(change, source) < FALSE_ALARM


@pytest.mark.usefixtures("remembered_laws")
@pytest.mark.parametrize("rule", RIGHT_RULES)
def test_a_right_rule_of_the_same_make_passes(rule: type[RejectionRule]) -> None:
    assert rule_p_value(rule) > THRESHOLD


@pytest.mark.usefixtures("remembered_laws")
@pytest.mark.parametrize(("change", "source"), RIGHT_SOURCES)
def test_a_right_source_of_the_same_make_passes(change: type[Changed], source: str) -> None:
    assert source_p_value(change, source) > THRESHOLD
