"""Skip sets by a knapsack over latencies: right units, right budgets, and the planted set is found."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.planted_costs import PlantedCosts
from tests.support.planted_space import some_space
from tests.support.tiny_models import build_model, planted_skip, prompt_ids, tiny_config, tiny_target

from selfspec_calibrate.knapsack import MAX_UNITS, LatencyUnits, knapsack_front, knapsack_seeds
from selfspec_calibrate.seeds import skip_seeds
from selfspec_calibrate.trace import Trace
from selfspec_runtime.layer_skip import LayerSkipSet
from selfspec_runtime.target import Target

TRACE = Trace("a", "chat", tuple(prompt_ids(10)), tuple(prompt_ids(12, seed=1)))
PLANTED = LayerSkipSet(attention=frozenset({1, 3}), mlp=frozenset({2}))


@pytest.fixture(scope="module")
def target() -> Target:
    """Six layers, of which two attentions and an MLP say nothing."""
    model = build_model(tiny_config("llama", num_hidden_layers=6))
    return Target(planted_skip(model, attention=PLANTED.attention, mlp=PLANTED.mlp))


@given(st.floats(1e-6, 1.0), st.floats(1e-6, 1.0))
def test_units_are_the_rounded_ratio_within_bounds(attention_s: float, mlp_s: float) -> None:
    units = LatencyUnits.of(attention_s, mlp_s)
    assert min(units.attention, units.mlp) == 1
    assert max(units.attention, units.mlp) <= MAX_UNITS
    ratio = max(attention_s, mlp_s) / min(attention_s, mlp_s)
    assert abs(max(units.attention, units.mlp) - min(ratio, MAX_UNITS)) <= 0.5
    if ratio > 1.5:
        assert (units.attention > units.mlp) == (attention_s > mlp_s)


def test_a_time_that_was_not_measured_counts_like_the_other() -> None:
    assert LatencyUnits.of(0.0, 1.0) == LatencyUnits.of(1.0, 0.0) == LatencyUnits(1, 1)


@pytest.mark.parametrize("units", [LatencyUnits(1, 1), LatencyUnits(1, 2), LatencyUnits(3, 1)])
def test_the_planted_set_is_the_best_of_its_price(target: Target, units: LatencyUnits) -> None:
    front = knapsack_front(target, TRACE, units)
    assert front is not None
    price = units.saved(PLANTED)
    assert front.skips[price] == PLANTED
    assert front.cosines[price] == pytest.approx(1.0, abs=1e-5)
    assert max(front.cosines[price + 1 :]) < 0.999


@pytest.mark.parametrize("units", [LatencyUnits(1, 1), LatencyUnits(2, 1), LatencyUnits(1, 4)])
def test_every_set_saves_its_units_and_keeps_the_ends(target: Target, units: LatencyUnits) -> None:
    front = knapsack_front(target, TRACE, units)
    assert front is not None
    assert len(front.skips) == int(0.5 * 6 * (units.attention + units.mlp)) + 1
    assert front.skips[0] == LayerSkipSet()
    found = [(saved, skip) for saved, skip in enumerate(front.skips) if skip is not None]
    assert len(found) > 3
    for saved, skip in found:
        assert units.saved(skip) == saved
        assert not {0, 5} & (skip.attention | skip.mlp)


def test_a_text_without_scored_tokens_has_no_front(target: Target) -> None:
    assert knapsack_front(target, Trace("a", "chat", (1, 2), (3,)), LatencyUnits(1, 1)) is None


def test_seeds_follow_the_cost_at_the_length_of_the_text(target: Target) -> None:
    """Long texts make attentions dear, so that sets of the same share hold fewer of them."""

    class Growing(PlantedCosts):
        def attention_s(self, context: int) -> float:
            return 0.01 * context

        def mlp_s(self, context: int) -> float:
            return 0.1

    short = Trace("b", "chat", (1,), tuple(prompt_ids(9, seed=2)))
    long = Trace("c", "chat", tuple(prompt_ids(50)), tuple(prompt_ids(9, seed=2)))
    cost = Growing(6)
    seeds = {
        name: knapsack_seeds(target, [trace], cost, max_seconds=1e9) for name, trace in (("s", short), ("l", long))
    }
    assert all(seeds.values())
    assert all(len(skip) for found in seeds.values() for skip in found)
    smallest = {name: min(found, key=len) for name, found in seeds.items()}
    assert max(len(skip.attention) for skip in seeds["s"]) > max(len(skip.attention) for skip in seeds["l"])
    assert len(smallest["s"]) >= 1


def test_time_that_is_not_there_is_not_taken(target: Target) -> None:
    class Measured(PlantedCosts):
        def attention_s(self, context: int) -> float:
            return 1.0

        mlp_s = attention_s

    assert knapsack_seeds(target, [TRACE], Measured(6), max_seconds=0.5) == ()
    assert knapsack_seeds(target, [TRACE], Measured(6), max_seconds=5.0) != ()


@pytest.mark.parametrize("family", ["opt", "mpt"])
def test_families_that_cannot_be_solved_have_no_seeds(family: str) -> None:
    assert knapsack_seeds(tiny_target(family), [TRACE], PlantedCosts(4), max_seconds=1e9) == ()


def test_the_search_starts_from_the_front(target: Target) -> None:
    space = some_space(6, skip_fronts=(PLANTED, LayerSkipSet(), LayerSkipSet.whole(range(6))))
    seeds = skip_seeds(space)
    assert PLANTED in seeds
    assert all(0 < len(skip) <= space.max_skipped for skip in seeds)


def test_nothing_of_the_models_is_changed(target: Target) -> None:
    ids = torch.tensor(prompt_ids(6))
    before = target.logits(ids, target.new_cache(), start=0)
    knapsack_front(target, TRACE, LatencyUnits(1, 2))
    assert torch.equal(target.logits(ids, target.new_cache(), start=0), before)
