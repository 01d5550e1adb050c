"""Every controller wins where the draft is good, is switched off where it is hopeless, and finds a good one again.

All costs are counted in plain steps; there is no clock.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.played import Chance, Played, play

from selfspec_runtime.controllers.confidence import ConfidenceSpec
from selfspec_runtime.controllers.controller import Controller
from selfspec_runtime.controllers.costs import RoundCosts
from selfspec_runtime.controllers.fallback import FallbackController
from selfspec_runtime.controllers.fixed import FixedController, FixedSpec
from selfspec_runtime.plan import DraftPlan

CONTROLLERS: dict[str, dict[str, Any]] = {
    "fixed": {"kind": "fixed", "num_draft_tokens": 5},
    "confidence": {"kind": "confidence", "num_draft_tokens": 8, "draft_confidence_threshold": 0.5},
    "adaptive_threshold": {"kind": "adaptive_threshold"},
    "accepted_length": {"kind": "accepted_length"},
    "thompson": {"kind": "thompson"},
}
COSTS = RoundCosts(draft_cost=0.3, verify_cost=(1.05, 1.05, 1.1, 1.1))
MAX_INTERVAL = 512


def build(name: str, *, costs: RoundCosts = COSTS, **changes: Any) -> Controller:
    entry = {**CONTROLLERS[name], "costs": costs.model_dump(), **changes}
    return DraftPlan.model_validate({"controller": entry}).controller.build()


def played(name: str, chance: Chance, *, num_tokens: int = 500, seed: int = 0, knows: bool = False) -> Played:
    return play(build(name), COSTS, chance, num_tokens=num_tokens, seed=seed, knows=knows)


@pytest.mark.parametrize("name", CONTROLLERS)
def test_a_good_draft_wins_over_plain_decoding(name: str) -> None:
    for seed in range(10):
        assert played(name, lambda _: 0.95, seed=seed).speedup > 1.4
        assert played(name, lambda _: 0.85, seed=seed, knows=True).speedup > 1.1


@pytest.mark.parametrize("name", CONTROLLERS)
@pytest.mark.parametrize("knows", [True, False])
def test_a_hopeless_draft_costs_a_twentieth_at_most(name: str, knows: bool) -> None:
    for seed in range(10):
        for chance in (0.0, 0.15):
            run = played(name, lambda _, chance=chance: chance, seed=seed, knows=knows)  # type: ignore[misc]
            assert run.cost <= 1.05 * run.tokens


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(sorted(CONTROLLERS)),
    st.integers(1, 64),
    st.floats(0.0, 2.0),
    st.lists(st.floats(1.0, 2.0), max_size=3).map(sorted),
    st.integers(0, 1_000),
)
def test_nothing_that_is_hopeless_costs_more_at_any_price(
    name: str, drafts: int, draft_cost: float, verify_cost: list[float], seed: int
) -> None:
    costs = RoundCosts(draft_cost=draft_cost, verify_cost=tuple(verify_cost))
    controller = build(name, costs=costs, num_draft_tokens=drafts)
    run = play(controller, costs, lambda _: 0.0, num_tokens=500, seed=seed, knows=False)
    assert run.cost <= 1.05 * run.tokens


@pytest.mark.parametrize("name", CONTROLLERS)
def test_a_draft_that_turns_good_is_found_again(name: str) -> None:
    for turn in (100, 700, 3_000):
        run = played(name, lambda t, turn=turn: float(t >= turn), num_tokens=turn + 2_000)  # type: ignore[misc]
        first = min(start for start, n in zip(run.starts, run.lengths, strict=True) if n and start >= turn)
        assert first <= turn + MAX_INTERVAL
        assert 0 not in run.drafted_between(first, turn + 2_000), "once found it is kept"
        assert 0 in run.drafted_between(0, turn)


@pytest.mark.parametrize("name", CONTROLLERS)
def test_a_good_but_not_perfect_draft_is_found_again_for_most_of_the_rest(name: str) -> None:
    for seed in range(5):
        run = played(name, lambda t: 0.0 if t < 700 else 0.92, num_tokens=4_000, seed=seed)
        rest = run.drafted_between(2_000, 4_000)
        assert sum(n > 0 for n in rest) > 0.9 * len(rest)


@pytest.mark.parametrize("name", CONTROLLERS)
def test_a_draft_that_turns_hopeless_is_switched_off(name: str) -> None:
    run = played(name, lambda t: 0.95 if t < 1_000 else 0.0, num_tokens=3_000)
    rest = run.drafted_between(1_100, 3_000)
    assert sum(n > 0 for n in rest) < 0.05 * len(rest)


@pytest.mark.parametrize("name", CONTROLLERS)
def test_rests_grow_while_it_loses(name: str) -> None:
    run = played(name, lambda _: 0.0, num_tokens=6_000)
    probes = [start for start, n in zip(run.starts, run.lengths, strict=True) if n]
    gaps = [b - a for a, b in pairwise(probes) if b - a > 1]
    assert len(gaps) < 30
    assert gaps[-1] >= gaps[0]
    assert MAX_INTERVAL <= gaps[-1] <= MAX_INTERVAL + 1


def run_of_rests(controller: FallbackController, accepted: list[int]) -> list[int]:
    """Length of the rest after each drafting round, given what rounds of two drafts have accepted."""
    rests = []
    for each in accepted:
        controller.observe(num_drafted=2, num_accepted=each)
        rests.append(0)
        while controller.is_resting:
            controller.observe(num_drafted=0, num_accepted=0)
            rests[-1] += 1
    return rests


def test_the_first_rest_after_a_win_is_short_again() -> None:
    # Four plain steps a round: patience of 8 is spent by the third lost round; a probe has one.
    costs = RoundCosts(draft_cost=1.5, verify_cost=(1.0,))
    losing = FallbackController(FixedController(2), costs, max_overhead=1e9, min_interval=4, max_interval=64)
    assert run_of_rests(losing, [0] * 7) == [0, 0, 4, 8, 16, 32, 64]
    cheap = RoundCosts(draft_cost=0.25, verify_cost=(1.0,))
    winning = FallbackController(
        FixedController(2), cheap, patience=0.4, probe_patience=0.1, max_overhead=1e9, min_interval=4
    )
    assert run_of_rests(winning, [0, 0, 2, 0]) == [4, 8, 0, 4]


def test_losses_are_paid_off_before_the_next_probe() -> None:
    costs = RoundCosts(draft_cost=1.5, verify_cost=(1.0,))
    controller = FallbackController(FixedController(2), costs, max_overhead=0.1, min_interval=1)
    # Three rounds lose 9 and say 3 tokens: a tenth of 90 tokens.
    assert run_of_rests(controller, [0, 0, 0]) == [0, 0, 87]


def test_a_draft_with_credit_is_probed_sooner_than_one_in_debt() -> None:
    def rest_after(won: int) -> int:
        controller = FallbackController(FixedController(2), RoundCosts(draft_cost=0.7))
        return run_of_rests(controller, [2] * won + [0] * 6)[-1]

    assert rest_after(0) > 100
    assert rest_after(100) == 16


def test_no_round_stakes_more_than_patience_and_winnings() -> None:
    controller = FallbackController(FixedController(20), RoundCosts(draft_cost=1.0))
    assert controller.budget() == 8
    for _ in range(40):
        controller.observe(num_drafted=8, num_accepted=8, num_passes=0)
    assert controller.budget() == 20


def test_passes_and_branches_are_what_is_paid_for() -> None:
    costs = RoundCosts(draft_cost=1.0, verify_cost=(1.0, 1.0, 1.0, 5.0))

    def rounds_until_rest(**counts: int) -> int:
        controller = FallbackController(FixedController(2), costs)
        for number in range(1, 100):
            controller.observe(num_drafted=2, num_accepted=0, **counts)
            if controller.is_resting:
                return number
        return 100

    assert rounds_until_rest() == 5  # loses 2 a round
    assert rounds_until_rest(num_passes=0) == 100  # a lookup at no cost
    assert rounds_until_rest(num_verified=4) == 2  # the tree's rows cost 4 more


def test_whoever_measures_a_fixed_plan_gets_it_as_it_is() -> None:
    assert isinstance(FixedSpec().build(), FixedController)
    assert isinstance(FixedSpec(costs=COSTS, fallback=False).build(), FixedController)
    guarded = FixedSpec(costs=COSTS)
    assert isinstance(guarded.build(), FallbackController)
    assert [spec.learns for spec in (FixedSpec(), FixedSpec(costs=COSTS, fallback=False), guarded)] == [
        False,
        False,
        True,
    ]
    assert guarded.describe() == "4 drafts, plain while they lose"
    assert build("thompson", fallback=False).budget() == build("thompson", fallback=False).budget() > 0


@pytest.mark.parametrize("name", CONTROLLERS)
def test_a_reset_forgets_the_rest(name: str) -> None:
    controller = build(name)
    first = play(controller, COSTS, lambda _: 0.0, num_tokens=200, knows=False)
    assert controller.budget() == 0
    assert play(controller, COSTS, lambda _: 0.0, num_tokens=200, knows=False) == first
    controller.reset()
    assert controller.budget() > 0


def test_the_confidence_is_asked_for_through_the_fallback() -> None:
    controller = ConfidenceSpec(costs=COSTS).build()
    assert controller.needs_confidence
    assert controller.wants_more(1, 0.9)
    assert not controller.wants_more(1, 0.1)
