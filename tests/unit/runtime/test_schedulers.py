"""Drafting ahead: which outcomes, whose draft, and when it pays; on a simulated clock."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.simulated_ahead import World, simulation

from selfspec_runtime.controllers.fixed import FixedController
from selfspec_runtime.drafts.draft import Draft
from selfspec_runtime.drafts.ngram import NgramIndex
from selfspec_runtime.drafts.suffix_automaton import SuffixAutomaton
from selfspec_runtime.processors import Processors
from selfspec_runtime.rules import GreedyRule
from selfspec_runtime.sampling import SamplingSettings
from selfspec_runtime.schedulers.break_even import AheadTimes
from selfspec_runtime.schedulers.outcomes import likely_places
from selfspec_runtime.schedulers.prepared import PreparedDraft, PreparedOutcomes
from selfspec_runtime.schedulers.successors import SuccessorCounts
from selfspec_runtime.sequence import Sequence

NUM_ROUNDS = 600
SHARES = st.floats(0.0, 3.0)
TEXT = st.lists(st.integers(0, 3), min_size=1, max_size=12)


def test_the_break_even_is_the_papers_theorem() -> None:
    times = AheadTimes(hit_rate=0.8, prepare=0.6, backup=0.25, draft=0.25)
    assert times.speedup(tokens_hit=4.0, tokens_miss=3.0) == pytest.approx((0.8 * 4 + 0.2 * 3) / (0.8 + 0.2 * 1.25))
    slow = AheadTimes(hit_rate=0.8, prepare=1.5, backup=0.25, draft=0.25)
    assert slow.speedup(tokens_hit=4.0, tokens_miss=3.0) == pytest.approx((0.8 * 4 + 0.2 * 3) / (0.8 * 1.5 + 0.25))


@given(st.floats(0.0, 1.0), SHARES, SHARES, st.floats(1.0, 5.0))
def test_the_gain_is_between_nothing_and_all_of_the_drafting(
    hit_rate: float, prepare: float, draft: float, tokens: float
) -> None:
    times = AheadTimes(hit_rate=hit_rate, prepare=prepare, backup=draft, draft=draft)
    in_turn = tokens / (1.0 + draft)
    assert times.speedup(tokens_hit=tokens, tokens_miss=tokens) == pytest.approx(times.gain * in_turn)
    assert times.gain <= 1.0 + draft + 1e-9
    assert (times.gain >= 1.0 - 1e-9) or prepare > 1.0 + draft


@given(st.integers(0, 8), st.integers(1, 60), st.floats(0.05, 0.95), st.floats(0.3, 3.0))
def test_places_come_in_the_order_of_their_chance(
    num_drafted: int, number: int, acceptance: float, exponent: float
) -> None:
    places = likely_places(num_drafted, number, acceptance=acceptance, miss_exponent=exponent)
    assert len(set(places)) == number
    chances = [
        acceptance**p.num_accepted
        * (1.0 if p.num_accepted == num_drafted else 1.0 - acceptance)
        * (p.rank + 1) ** -(1.0 + exponent)
        for p in places
    ]
    assert chances == sorted(chances, reverse=True)
    for place in places:
        assert place.rank == 0 or type(place)(place.num_accepted, place.rank - 1) in places


def test_many_places_fan_out_geometrically() -> None:
    acceptance, exponent, last = 0.7, 1.0, 5
    places = likely_places(last, 2_000, acceptance=acceptance, miss_exponent=exponent)
    counts = Counter(place.num_accepted for place in places)
    ratio = acceptance ** (1 / (1 + exponent))
    for k in range(last - 1):
        assert counts[k + 1] / counts[k] == pytest.approx(ratio, rel=0.02)
    bonus = ratio * (1 - acceptance) ** (-1 / (1 + exponent))
    assert counts[last] / counts[last - 1] == pytest.approx(bonus, rel=0.02)


@given(TEXT, st.lists(TEXT, min_size=1, max_size=6), TEXT, st.booleans())
def test_no_draft_is_taken_for_another_outcome(
    text: list[int], outcomes: list[list[int]], came_true: list[int], other_text: bool
) -> None:
    prepared = PreparedOutcomes(tuple(text))
    for number, committed in enumerate(outcomes):
        prepared.add(committed, PreparedDraft(Draft([number]), 0.0))
    ids = [*text, *came_true]
    if other_text:
        ids = [9, *ids[1:]]
    found = prepared.take(ids)
    if came_true in outcomes and not other_text:
        assert found is not None
        last = max(number for number, committed in enumerate(outcomes) if committed == came_true)
        assert found.draft.token_ids == [last]
    else:
        assert found is None


@given(TEXT, TEXT, st.integers(1, 6), st.integers(1, 3), st.integers(0, 2))
def test_looking_ahead_finds_what_the_longer_text_would(
    text: list[int], extra: list[int], max_tokens: int, min_match: int, span: int
) -> None:
    index, whole = NgramIndex(min_match, min_match + span), NgramIndex(min_match, min_match + span)
    index.extend_to(text)
    whole.extend_to([*text, *extra])
    before = index.continuation(max_tokens)
    assert index.continuation_after(extra, max_tokens) == whole.continuation(max_tokens)
    assert index.continuation_after([], max_tokens) == before
    assert index.continuation(max_tokens) == before


def test_what_followed_the_last_two_tokens_is_likelier_than_what_followed_one() -> None:
    counts = SuccessorCounts()
    counts.extend_to([1, 2, 3, 1, 2])
    counts.extend_to([1, 2, 3, 1, 2, 3, 4, 2, 5, 6, 2, 5, 7, 2, 5])
    assert counts.likeliest([1, 2], 3) == [3, 5, 2]
    assert counts.likeliest([9, 2], 2) == [5, 3]
    assert counts.likeliest([1, 2], 2, first=8) == [8, 3]
    assert counts.likeliest([], 1) == [2]
    assert SuccessorCounts().likeliest([1], 3) == []


BREAK_EVEN = [
    # hit rate, draft, prepare, beside: gain
    (0.9, 0.3, 0.5, 1.0, True),  # 1.26
    (0.9, 0.3, 1.6, 1.0, False),  # 0.83: preparing takes longer than verifying
    (0.9, 0.1, 0.5, 1.2, False),  # 0.90: they hinder each other
    (0.9, 0.5, 0.5, 1.2, True),  # 1.22
    (0.1, 0.1, 0.5, 1.0, False),  # 1.01: too few hits
    (0.0, 0.5, 0.1, 1.0, False),
    (1.0, 0.05, 0.9, 1.0, True),
    (1.0, 0.02, 0.1, 1.0, False),  # 1.02: below the threshold
]


@pytest.mark.parametrize(("hit_rate", "draft", "prepare", "beside", "pays"), BREAK_EVEN)
def test_it_is_on_above_the_break_even_and_off_below(
    hit_rate: float, draft: float, prepare: float, beside: float, pays: bool
) -> None:
    run = simulation(World(hit_rate, draft, prepare, beside_s=beside))
    took_s = run.run(NUM_ROUNDS)
    assert (sum(run.beside) / NUM_ROUNDS > 0.8) is pays
    in_turn_s = NUM_ROUNDS * (1.0 + draft)
    assert took_s < 1.03 * in_turn_s
    if pays:
        assert took_s < 0.97 * in_turn_s
        assert run.scheduler.notices == ()
    else:
        assert sum(run.beside) < 0.1 * NUM_ROUNDS
        assert "switched off" in run.scheduler.notices[0]


@pytest.mark.parametrize("hit_rate", [0.0, 0.25, 0.7, 1.0])
def test_hits_are_counted(hit_rate: float) -> None:
    run = simulation(World(hit_rate, 0.5, 0.1), min_gain=0.0)
    run.run(NUM_ROUNDS)
    gate = run.scheduler.gate
    assert run.drafts.count("ahead") == gate.num_hits
    assert sum(run.beside) - gate.num_rounds in (0, 1)
    assert gate.num_hits / gate.num_rounds == pytest.approx(hit_rate, abs=0.06)
    assert gate.times is not None
    assert gate.times.draft == pytest.approx(0.5)
    assert gate.times.verify == 1.0
    if hit_rate:
        assert gate.times.prepare == pytest.approx(0.1)


@pytest.mark.parametrize("pays_first", [True, False])
def test_it_is_tried_again_and_notices_a_change(pays_first: bool) -> None:
    rates = (0.95, 0.0) if pays_first else (0.0, 0.95)
    world = World(rates[0], 0.4, 0.2)
    run = simulation(world, interval=32, max_interval=64)

    def turn(number: int) -> None:
        world.hit_rate = rates[number >= 300]

    run.turn = turn
    run.run(700)
    for rounds, pays in ((run.beside[24:300], pays_first), (run.beside[400:], not pays_first)):
        share = sum(rounds) / len(rounds)
        assert share > 0.6 if pays else share < 0.25


def test_plain_steps_while_speculation_rests_are_no_evidence() -> None:
    run = simulation(World(1.0, 0.4, 0.2))
    rule, resting = GreedyRule(SamplingSettings(), Processors()), FixedController(0)
    sequence = Sequence([1], device=torch.device("cpu"))
    for _ in range(100):
        run.scheduler.start(sequence, Draft(), cast("Any", None), rule=rule, controller=resting)
        run.scheduler.observe(draft_s=0.0, verify_s=1.0)
    assert not run.world.texts
    run.scheduler.gate.record_in_turn(draft_s=0.4, verify_s=1.0)
    assert not run.scheduler.gate.is_on, "the trial is still in its first rounds"


def test_a_reset_makes_it_new() -> None:
    run = simulation(World(0.0, 0.4, 0.2))
    run.run(100)
    first = list(run.beside)
    run.beside.clear()
    run.run(100)
    assert run.beside == first
    run.scheduler.reset()
    assert run.scheduler.gate.num_rounds == 0
    assert run.scheduler.notices == ()


@given(TEXT, st.lists(st.integers(0, 3), min_size=1, max_size=5))
def test_a_suffix_is_matched_ahead_as_far_as_the_text_itself_knows_it(text: list[int], extra: list[int]) -> None:
    automaton = SuffixAutomaton()
    automaton.extend_to(text)
    whole = [*text, *extra]
    known = {tuple(text[i:j]) for i in range(len(text)) for j in range(i + 1, len(text) + 1)}
    longest = max((n for n in range(1, len(whole) + 1) if tuple(whole[-n:]) in known), default=0)
    state, length = automaton.match_after(extra)
    assert length == longest
    states = automaton.num_states
    found = automaton.continuation_after(state, 1)
    ends = [j for j in range(1, len(text)) if longest and tuple(text[:j][-longest:]) == tuple(whole[-longest:])]
    followed = {text[j] for j in ends}
    assert set(found) <= followed or state is automaton._last
    assert bool(found) or not followed
    assert automaton.num_states == states
