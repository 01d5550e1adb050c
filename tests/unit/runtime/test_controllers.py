"""Every controller keeps the contract; what is its own is tested beside."""

from __future__ import annotations

from itertools import accumulate, pairwise
from operator import mul
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.contracts import ControllerContract
from tests.support.played import play

from selfspec_runtime.controllers.accepted_length import AcceptedLengthController
from selfspec_runtime.controllers.adaptive_threshold import AdaptiveThresholdController
from selfspec_runtime.controllers.confidence import ConfidenceController
from selfspec_runtime.controllers.costs import RoundCosts
from selfspec_runtime.controllers.fixed import FixedController, FixedSpec
from selfspec_runtime.controllers.thompson import ThompsonController

COSTS = {"draft_cost": 0.3, "verify_cost": [1.02, 1.05, 1.1]}
BAD_COSTS = [
    {"costs": None},
    {"costs": {"draft_cost": -0.1}},
    {"costs": {"draft_cost": 0.1, "verify_cost": [0.0]}},
    {"costs": {"draft_cost": "nan"}},
    {"costs": {"verify_cost": [1.0]}},
]


class TestFixed(ControllerContract):
    controller: ClassVar = {"kind": "fixed", "num_draft_tokens": 4}
    malformed: ClassVar = [
        {"num_draft_tokens": 0},
        {"num_draft_tokens": 65},
        {"num_draft_tokens": 1.5},
        {"kind": "none"},
    ]


class TestConfidence(ControllerContract):
    controller: ClassVar = {"kind": "confidence", "num_draft_tokens": 7, "draft_confidence_threshold": 0.3}
    malformed: ClassVar = [
        {"num_draft_tokens": 0},
        {"num_draft_tokens": 65},
        {"draft_confidence_threshold": -0.1},
        {"draft_confidence_threshold": 1.1},
        {"draft_confidence_threshold": None},
    ]


class TestFixedThatFallsBack(ControllerContract):
    controller: ClassVar = {"kind": "fixed", "num_draft_tokens": 4, "costs": COSTS}
    malformed: ClassVar = [*BAD_COSTS[1:], {"fallback": "perhaps"}]


class TestConfidenceThatFallsBack(ControllerContract):
    controller: ClassVar = {"kind": "confidence", "num_draft_tokens": 7, "costs": COSTS}
    malformed: ClassVar = BAD_COSTS[1:]


class TestAdaptiveThreshold(ControllerContract):
    controller: ClassVar = {"kind": "adaptive_threshold", "num_draft_tokens": 7}
    malformed: ClassVar = [
        {"num_draft_tokens": 0},
        {"draft_confidence_threshold": 1.1},
        {"target_acceptance_rate": 1.0},
        {"target_acceptance_rate": 0.0},
        {"threshold_step": 0.0},
    ]


class TestAcceptedLength(ControllerContract):
    controller: ClassVar = {"kind": "accepted_length", "num_draft_tokens": 7, "costs": COSTS}
    malformed: ClassVar = [*BAD_COSTS, {"average_weight": 0.0}, {"average_weight": 1.1}, {"probe_interval": 0}]


class TestThompson(ControllerContract):
    controller: ClassVar = {"kind": "thompson", "num_draft_tokens": 7, "costs": COSTS}
    malformed: ClassVar = [*BAD_COSTS, {"discount": 0.0}, {"discount": 1.1}, {"seed": -1}]


def test_the_fixed_number_is_drafted_and_no_more() -> None:
    controller: ClassVar = FixedController(3)
    assert [controller.wants_more(number, 0.0) for number in (1, 2, 3)] == [True, True, False]


@pytest.mark.parametrize(("confidence", "goes_on"), [(0.59, False), (0.6, True), (1.0, True)])
def test_a_draft_goes_on_from_the_threshold_on(confidence: float, goes_on: bool) -> None:
    assert ConfidenceController(8, 0.6).wants_more(1, confidence) is goes_on


def test_one_draft_is_not_called_drafts() -> None:
    assert [FixedSpec(num_draft_tokens=n).describe() for n in (1, 2)] == ["1 draft", "2 drafts"]


def test_costs_rise_beyond_what_was_measured_and_never_fall() -> None:
    costs = RoundCosts(draft_cost=0.5, verify_cost=(1.2, 1.4))
    assert [costs.verification(n) for n in range(5)] == pytest.approx([1.0, 1.2, 1.4, 1.6, 1.8])
    assert RoundCosts(draft_cost=0.0, verify_cost=(0.9,)).verification(3) == 0.9
    assert costs.of_round(2) == pytest.approx(2.4)
    assert costs.of_round(2, num_passes=0) == 1.4


@given(
    st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.lists(st.floats(0.5, 3.0), max_size=4).map(tuple), st.integers(1, 12)
)
def test_the_best_length_is_the_best_of_all(
    acceptance: float, draft_cost: float, verify_cost: tuple[float, ...], longest: int
) -> None:
    costs = RoundCosts(draft_cost=draft_cost, verify_cost=verify_cost)
    chances = list(accumulate([acceptance] * longest, mul))
    rates = [(1.0 + sum(chances[:n])) / costs.of_round(n) for n in range(1, longest + 1)]
    assert rates[costs.best_length(chances) - 1] == pytest.approx(max(rates))


def adapted(*rounds: tuple[int, int], threshold: float = 0.6) -> float:
    controller = AdaptiveThresholdController(4, threshold)
    for num_drafted, num_accepted in rounds:
        controller.wants_more(num_drafted, 0.0 if num_drafted < controller.num_draft_tokens else 1.0)
        controller.observe(num_drafted=num_drafted, num_accepted=num_accepted)
    return controller.threshold


def test_the_threshold_follows_the_acceptance_rate_by_the_papers_rule() -> None:
    assert adapted((4, 0)) == pytest.approx(0.9 * 0.6 + 0.1 * 0.61)
    assert adapted((4, 4)) == 0.6, "a full draft was not stopped by the threshold, which is then no reason to lower it"
    assert adapted((2, 2)) == pytest.approx(0.9 * 0.6 + 0.1 * 0.59)
    # The rate is averaged: 0.45, then 0.725, then 0.8625, all below the target of 0.9; then 0.93.
    assert adapted((4, 0), (2, 2), (2, 2)) == pytest.approx(0.603)
    assert adapted((4, 0), (2, 2), (2, 2), (2, 2)) == pytest.approx(0.602)
    assert adapted((0, 0)) == 0.6


def test_a_draft_that_something_else_cut_is_no_reason_to_lower_the_threshold() -> None:
    controller = AdaptiveThresholdController(4, 0.6)
    for _ in range(2):
        assert controller.wants_more(1, 0.9)
        controller.observe(num_drafted=2, num_accepted=2)
    assert controller.threshold == 0.6


def test_the_threshold_stays_a_probability() -> None:
    assert adapted(*[(4, 0)] * 1_000, threshold=0.99) == 1.0
    assert adapted(*[(1, 1)] * 1_000, threshold=0.01) == 0.0


def test_a_lookups_outcome_says_nothing_about_the_threshold() -> None:
    controller = AdaptiveThresholdController(4, 0.6)
    controller.observe(num_drafted=4, num_accepted=0, num_passes=0)
    assert controller.threshold == 0.6


CHEAP = RoundCosts(draft_cost=0.1, verify_cost=(1.05,))
LEARNING = {
    "accepted length": lambda costs: AcceptedLengthController(12, costs),
    "Thompson": lambda costs: ThompsonController(12, costs),
}


def ideal(acceptance: float, costs: RoundCosts) -> int:
    return costs.best_length(accumulate([acceptance] * 12, mul))


@pytest.mark.parametrize("acceptance", [0.2, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("name", LEARNING)
def test_the_length_goes_to_what_is_best_for_the_acceptance(name: str, acceptance: float) -> None:
    played = play(LEARNING[name](CHEAP), CHEAP, lambda _: acceptance, num_tokens=4_000)
    best = play(FixedController(ideal(acceptance, CHEAP)), CHEAP, lambda _: acceptance, num_tokens=4_000)
    assert played.speedup > 0.94 * best.speedup
    late = sorted(played.lengths[-100:])
    assert 0.5 * ideal(acceptance, CHEAP) <= late[50] <= 2 * ideal(acceptance, CHEAP)


@pytest.mark.parametrize("name", LEARNING)
def test_the_length_follows_a_text_that_changes(name: str) -> None:
    played = play(LEARNING[name](CHEAP), CHEAP, lambda t: 0.1 if t < 1_000 else 0.95, num_tokens=3_000)
    before, after = played.drafted_between(500, 1_000), played.drafted_between(1_500, 3_000)
    assert sum(before) / len(before) < 3
    assert sum(after) / len(after) > 6


def test_longer_drafts_are_probed_at_the_interval() -> None:
    controller = AcceptedLengthController(8, RoundCosts(draft_cost=0.4), probe_interval=4)
    lengths = []
    for _ in range(40):
        lengths.append(controller.budget())
        controller.observe(num_drafted=lengths[-1], num_accepted=0)
    probes = [number for number, length in enumerate(lengths) if number >= 10 and length == 2]
    assert lengths[10:].count(1) + len(probes) == 30
    assert {after - before for before, after in pairwise(probes)} == {5}


def test_thompson_sampling_is_a_function_of_its_seed() -> None:
    def lengths(seed: int) -> list[int]:
        return play(ThompsonController(12, CHEAP, seed=seed), CHEAP, lambda _: 0.7, num_tokens=300).lengths

    assert lengths(1) == lengths(1)
    assert lengths(1) != lengths(2)
    assert len(set(lengths(1))) > 2
