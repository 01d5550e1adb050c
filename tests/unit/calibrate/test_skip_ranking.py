from __future__ import annotations

import math
from itertools import chain, combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfspec_calibrate.sensitivity import Sensitivity
from selfspec_calibrate.skip_ranking import SkipRanking, positions_of, skip_set_of
from selfspec_runtime.layer_skip import LayerSkipSet

agreements = st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3)


def ranking_of(attention: list[float], mlp: list[float], attention_s: float = 1.0, mlp_s: float = 1.0) -> SkipRanking:
    return SkipRanking(Sensitivity(tuple(attention), tuple(mlp)), attention_s, mlp_s)


@given(st.frozensets(st.integers(0, 30)), st.frozensets(st.integers(0, 30)))
def test_positions_stand_for_a_skip_set(attention: frozenset[int], mlp: frozenset[int]) -> None:
    skip = LayerSkipSet(attention=attention, mlp=mlp)
    assert skip_set_of(positions_of(skip)) == skip
    assert len(positions_of(skip)) == len(skip)


def test_the_cheapest_per_second_comes_first() -> None:
    ranking = ranking_of([0.1, 0.9, 0.8, 0.1], [0.1, 0.85, 0.95, 0.1], attention_s=1.0, mlp_s=4.0)
    # Losses per second: A1 0.105, A2 0.223, M1 0.041, M2 0.013.
    assert [ranking.ranked(n).describe() for n in (1, 2, 3, 4)] == [
        "skip M2",
        "skip M1-2",
        "skip A1 M1-2",
        "skip A1-2 M1-2",
    ]


def test_a_weight_keeps_attentions_and_a_spread_keeps_neighbours_apart() -> None:
    flat = ranking_of([0.1, *[0.95] * 6, 0.1], [0.1, *[0.94] * 6, 0.1])
    assert flat.ranked(6).describe() == "skip A1-6"
    assert flat.ranked(6, attention_weight=2.0).describe() == "skip M1-6"
    crowded = positions_of(flat.ranked(4))
    apart = positions_of(flat.ranked(4, spread=3.0))
    gaps = [[b - a for a, b in pairwise(sorted(p))] for p in (crowded, apart)]
    assert min(gaps[1]) > min(gaps[0])


@given(agreements, agreements, st.integers(1, 6), st.floats(0.25, 4.0), st.floats(0.0, 3.0))
def test_larger_budgets_add_to_smaller_ones(
    attention: list[float], mlp: list[float], budget: int, weight: float, spread: float
) -> None:
    ranking = ranking_of(attention, mlp)
    sets = [positions_of(ranking.ranked(size, attention_weight=weight, spread=spread)) for size in range(1, budget + 1)]
    assert all(smaller < larger or len(larger) == len(ranking.candidates) for smaller, larger in pairwise(sets))
    assert all(found <= set(ranking.candidates) for found in sets)


@given(agreements, agreements, st.floats(0.1, 1.0), st.floats(0.1, 1.0), st.floats(0.0, 1.0))
def test_the_knapsack_equals_trying_every_set(
    attention: list[float], mlp: list[float], attention_s: float, mlp_s: float, share: float
) -> None:
    ranking = ranking_of(attention, mlp, attention_s, mlp_s)
    wanted_s = share * ranking.total_s

    def saved_s(positions: tuple[int, ...]) -> float:
        return sum(ranking.saved_s(position) for position in positions)

    def loss(positions: tuple[int, ...]) -> float:
        return sum(ranking.losses[position] for position in positions)

    sizes = range(len(ranking.candidates) + 1)
    every = chain.from_iterable(combinations(ranking.candidates, size) for size in sizes)
    lowest = min(loss(positions) for positions in every if saved_s(positions) >= wanted_s - 1e-9)
    found = tuple(positions_of(ranking.knapsack(wanted_s)))
    assert saved_s(found) >= wanted_s - 1e-6
    assert loss(found) == pytest.approx(lowest)


@pytest.mark.parametrize(("end", "is_harmless"), [(0.5, False), (0.93, True)])
def test_the_ends_are_left_out_only_where_that_is_harmless(end: float, is_harmless: bool) -> None:
    ranking = ranking_of([end, 0.9, 0.92, 0.9, 0.1], [0.1, 0.9, 0.9, 0.9, 0.1])
    assert (0 in ranking.candidates) is is_harmless
    assert set(range(2, 8)) <= set(ranking.candidates)
    assert not {1, 8, 9} & set(ranking.candidates)


def test_a_model_of_two_layers_has_nothing_but_ends() -> None:
    assert ranking_of([0.5, 0.6], [0.7, 0.8]).candidates == (0, 1, 2, 3)


def test_a_model_whose_attentions_cannot_be_left_out_has_mlps_only() -> None:
    ranking = ranking_of([], [0.1, 0.9, 0.8, 0.7, 0.1])
    assert ranking.candidates == (3, 5, 7)
    assert ranking.ranked(9).attention == frozenset()
    assert ranking.knapsack(2.0).describe() == "skip M1-2"


def test_perfect_and_hopeless_agreements_have_finite_losses() -> None:
    ranking = ranking_of([0.0, 1.0, 0.0], [1.0, 0.0, 1.0])
    assert all(math.isfinite(loss) and loss > 0 for loss in ranking.losses.values())


def test_orders_begin_as_the_ranks_do() -> None:
    ranking = ranking_of([0.1, 0.9, 0.8, 0.97, 0.1], [0.1, 0.85, 0.95, 0.9, 0.1])
    for (weight, spread), order in ranking.orders.items():
        assert skip_set_of(order[:3]) == ranking.ranked(3, attention_weight=weight, spread=spread)
