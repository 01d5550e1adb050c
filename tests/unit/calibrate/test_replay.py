from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.support.tiny_models import planted, tiny_model

from selfspec_calibrate.replay import ReplayedTrace, RoundKind, TraceReplayer, replay
from selfspec_calibrate.scoring import TokenScores
from selfspec_calibrate.trace import Trace
from selfspec_runtime.engine import Engine
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.plan import PLAIN, DraftPlan
from selfspec_runtime.target import Target

VOCAB = 12
FIXED_3 = {"kind": "fixed", "num_draft_tokens": 3}
SURE = {"kind": "confidence", "num_draft_tokens": 5, "draft_confidence_threshold": 0.1}
EXIT = {"kind": "early_exit", "exit_layer": 2}


def plan_of(source: dict[str, object] | None, controller: dict[str, object] = FIXED_3) -> DraftPlan:
    return DraftPlan.model_validate({"source": source, "controller": controller})


@cache
def planted_target() -> Target:
    return Target(planted(tiny_model("llama"), exit_layer=2))


def prompt(seed: int) -> list[int]:
    """Few different tokens, so that lookups find something, right or wrong."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, 4 + VOCAB, (40,), generator=generator).tolist()


class Decoded:
    """What the real decoder did with a plan after the first token."""

    def __init__(self, plan: DraftPlan, seed: int, settings: GenerationSettings) -> None:
        self.prompt_ids = prompt(seed)
        steps = list(Engine(planted_target(), plan=plan).stream(self.prompt_ids, settings))
        self.output_ids = [token for step in steps for token in step.token_ids]
        # A lookup that found nothing made a plain step.
        origins = [step.origin if step.num_drafted else "none" for step in steps[1:]]
        outcomes = [(step.num_drafted, step.num_accepted) for step in steps[1:]]
        self.rounds = Counter((origin, *outcome) for origin, outcome in zip(origins, outcomes, strict=True))


@cache
def trace_of(seed: int, settings: GenerationSettings) -> Trace:
    plain = Decoded(PLAIN, seed, settings)
    return Trace(str(seed), "test", tuple(plain.prompt_ids), tuple(plain.output_ids))


def counts(replayed: ReplayedTrace) -> Counter[tuple[str, int, int]]:
    found: Counter[tuple[str, int, int]] = Counter()
    for kind, entry in replayed.rounds.items():
        assert entry.count == pytest.approx(round(entry.count)), "a greedy trace has whole counts"
        found[(kind.origin, kind.num_drafted, kind.num_accepted)] += round(entry.count)
    return found


def exact_scores(trace: Trace) -> TokenScores:
    """Scores of a draft that equals the target."""
    ids = torch.tensor([[*trace.prompt_ids, *trace.output_ids]])
    with torch.no_grad():
        logits = planted_target().model(ids).logits[0]
    rows = logits[len(trace.prompt_ids) : -1].float().softmax(dim=-1)
    confidence = rows.max(dim=-1).values.numpy()
    return TokenScores(np.ones(len(trace.output_ids) - 1, np.float32), confidence)


NGRAM, SUFFIX = {"kind": "ngram"}, {"kind": "suffix", "min_probability": 0.0}
LOOKUPS = [
    NGRAM,
    {"kind": "ngram", "min_match": 2, "max_match": 2},
    {"kind": "ngram", "num_draft_tokens": 7},
    SUFFIX,
    {"kind": "suffix", "min_match": 2, "tokens_per_match": 0.5},
    {"kind": "suffix", "tokens_per_match": 8.0, "min_probability": 0.3, "num_draft_tokens": 7},
]
BOTH = pytest.mark.parametrize("lookup", [NGRAM, SUFFIX], ids=lambda lookup: lookup["kind"])


@pytest.mark.parametrize("source", LOOKUPS)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("controller", [FIXED_3, {"kind": "fixed", "num_draft_tokens": 16}])
def test_lookups_are_replayed_exactly(source: dict[str, object], controller: dict[str, object], seed: int) -> None:
    settings = GenerationSettings(max_new_tokens=40)
    trace, plan = trace_of(seed, settings), plan_of(source, controller)
    assert counts(replay(plan, trace)) == Decoded(plan, seed, settings).rounds


@given(plans=st.permutations([plan_of(source) for source in LOOKUPS]))
@hypothesis_settings(max_examples=5)
def test_one_replayer_keeps_lookups_apart(plans: list[DraftPlan]) -> None:
    trace = trace_of(0, GenerationSettings(max_new_tokens=40))
    shared = TraceReplayer(trace)
    assert [shared.replay(plan) for plan in plans] == [replay(plan, trace) for plan in plans]


@BOTH
def test_lookups_find_something_to_replay(lookup: dict[str, object]) -> None:
    settings = GenerationSettings(max_new_tokens=40)
    found = [counts(replay(plan_of(lookup), trace_of(seed, settings))) for seed in range(3)]
    rounds = sum(found, Counter())
    assert any(accepted > 0 for _, _, accepted in rounds)
    assert any(drafted > accepted for _, drafted, accepted in rounds)
    assert any(origin == "none" for origin, _, _ in rounds)


@pytest.mark.parametrize("controller", [FIXED_3, SURE, {"kind": "fixed", "num_draft_tokens": 16}])
@pytest.mark.parametrize("first", [None, NGRAM, SUFFIX])
def test_passes_that_equal_the_target_are_replayed_exactly(
    controller: dict[str, object], first: dict[str, object] | None
) -> None:
    settings = GenerationSettings(max_new_tokens=40)
    trace = trace_of(0, settings)
    source = {"kind": "ngram_first", "ngram": first, "then": EXIT} if first is not None else EXIT
    plan = plan_of(source, controller)
    replayed = replay(plan, trace, exact_scores(trace))
    decoded = Decoded(plan, 0, settings)
    assert counts(replayed) == decoded.rounds
    assert replayed.num_emitted_tokens == 39


@BOTH
def test_both_sources_of_a_composition_draft(lookup: dict[str, object]) -> None:
    settings = GenerationSettings(max_new_tokens=40)
    plan = plan_of({"kind": "ngram_first", "ngram": lookup, "then": EXIT})
    traces = [trace_of(seed, settings) for seed in range(3)]
    rounds = sum((counts(replay(plan, trace, exact_scores(trace))) for trace in traces), Counter())
    assert {origin for origin, _, _ in rounds} >= {"early_exit", str(lookup["kind"])}


def test_a_threshold_shortens_some_drafts() -> None:
    settings = GenerationSettings(max_new_tokens=40)
    trace = trace_of(0, settings)
    replayed = replay(plan_of(EXIT, SURE), trace, exact_scores(trace))
    assert len({kind.num_drafted for kind in replayed.rounds}) > 2


@pytest.mark.parametrize("source", [*LOOKUPS, EXIT])
def test_a_trace_that_ended_early_is_replayed_under_the_limit_of_its_decoding(source: dict[str, object]) -> None:
    open_ended = trace_of(1, GenerationSettings(max_new_tokens=40))
    end = next(i for i in range(15, 40) if open_ended.output_ids[i] not in open_ended.output_ids[:i])
    settings = GenerationSettings(max_new_tokens=40, eos_token_ids=(open_ended.output_ids[end],))
    trace = trace_of(1, settings)
    assert len(trace.output_ids) == end + 1
    replayed = TraceReplayer(trace, max_new_tokens=40).replay(plan_of(source), exact_scores(trace))
    assert counts(replayed) == Decoded(plan_of(source), 1, settings).rounds


@BOTH
def test_counts_add_up_to_the_engine_s_statistics(lookup: dict[str, object]) -> None:
    settings = GenerationSettings(max_new_tokens=40)
    trace, plan = trace_of(2, settings), plan_of(lookup)
    replayed = replay(plan, trace)
    stats = Engine(planted_target(), plan=plan).generate(list(trace.prompt_ids), settings).stats
    assert replayed.num_rounds == stats.num_rounds
    assert replayed.num_drafts == stats.num_drafts
    assert replayed.num_draft_tokens == stats.num_draft_tokens
    assert replayed.num_accepted_tokens == stats.num_accepted_tokens
    assert replayed.num_draft_passes == stats.num_draft_passes == 0
    assert replayed.num_emitted_tokens == stats.num_emitted_tokens


def scored(accept: list[float], confidence: list[float] | None = None) -> tuple[Trace, TokenScores]:
    trace = Trace("x", "test", (1, 2, 3), tuple(range(len(accept) + 1)))
    sure = np.ones(len(accept)) if confidence is None else np.array(confidence)
    return trace, TokenScores(np.array(accept), sure)


def by_hand(accept: list[float], num_draft_tokens: int, row: int = 0, chance: float = 1.0) -> Counter[tuple[int, int]]:
    """Expected rounds by (drafted, accepted): every course that decoding can take, one by one."""
    left = len(accept) - row
    found: Counter[tuple[int, int]] = Counter()
    if left <= 0 or chance == 0.0:
        return found
    drafted = min(num_draft_tokens, left - 1)
    for accepted in range(drafted + 1):
        likely = chance * float(np.prod(accept[row : row + accepted]))
        likely *= 1.0 if accepted == drafted else 1.0 - accept[row + accepted]
        found[(drafted, accepted)] += likely
        found.update(by_hand(accept, num_draft_tokens, row + accepted + 1, likely))
    return found


chances = st.lists(st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0.05, 0.95)), min_size=1, max_size=7)


@given(chances, st.integers(1, 4))
def test_sampled_traces_give_the_expectation_over_all_courses(accept: list[float], num_draft_tokens: int) -> None:
    trace, scores = scored(accept)
    plan = plan_of(EXIT, {"kind": "fixed", "num_draft_tokens": num_draft_tokens})
    found = replay(plan, trace, scores).rounds
    wanted = {key: value for key, value in by_hand(accept, num_draft_tokens).items() if value > 1e-6}
    assert {
        (kind.num_drafted, kind.num_accepted): entry.count for kind, entry in found.items() if entry.count > 1e-6
    } == pytest.approx(wanted)


def test_the_unsure_token_is_kept_and_none_follows_it() -> None:
    trace, scores = scored([1.0] * 8, [0.9, 0.9, 0.2, 0.9, 0.1, 0.9, 0.9, 0.9])
    plan = plan_of(EXIT, {"kind": "confidence", "num_draft_tokens": 4, "draft_confidence_threshold": 0.5})
    found = replay(plan, trace, scores).rounds
    # Rows 0 to 2 (unsure at 2), bonus 3, row 4 alone (unsure), bonus 5, then row 6 with room for one, bonus 7.
    assert {kind: entry.count for kind, entry in found.items()} == {
        RoundKind("early_exit", 3, 3): 1.0,
        RoundKind("early_exit", 1, 1): 2.0,
    }


def test_contexts_are_the_positions_cached_when_a_round_starts() -> None:
    trace, scores = scored([1.0, 0.0, 1.0, 0.0, 1.0, 1.0])
    found = replay(plan_of(EXIT, {"kind": "fixed", "num_draft_tokens": 2}), trace, scores).rounds
    # Rounds start at rows 0, 2 and 4 after 3 prompt tokens; the last has room for one draft token.
    assert found[RoundKind("early_exit", 2, 1)].context == (3 + 5) / 2
    assert found[RoundKind("early_exit", 1, 1)].context == 7


@pytest.mark.parametrize("length", [0, 1])
def test_a_trace_without_rows_has_no_rounds(length: int) -> None:
    trace = Trace("x", "test", (1, 2), tuple(range(length)))
    replayed = replay(plan_of(NGRAM), trace)
    assert replayed.rounds == {}
    assert replayed.num_emitted_tokens == 0


def test_plain_decoding_is_one_round_per_token() -> None:
    trace, _ = scored([1.0] * 5)
    assert {kind: entry.count for kind, entry in replay(PLAIN, trace).rounds.items()} == {RoundKind("none", 0, 0): 5.0}
