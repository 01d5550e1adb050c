"""SWIFT's search apart from any model: same size, same tokens, and better sets in the end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfspec_runtime.drafts.skip_search import SkipSearch, Units


def planted(num_units: int, seed: int) -> np.ndarray:
    """What each unit costs if it is left out: half of them nothing, the others a lot."""
    losses = np.zeros(num_units)
    dear = np.random.default_rng(seed).permutation(num_units)[: num_units // 2]
    losses[dear] = np.linspace(0.05, 0.3, len(dear))
    return losses


def score(units: Units, losses: np.ndarray, *, difficulty: float = 0.0) -> float:
    """Agreement on a window; some windows are harder than others."""
    return float(np.exp(-losses[sorted(units)].sum() - difficulty))


def searched(losses: np.ndarray, *, steps: int, seed: int = 0, **options: int) -> SkipSearch:
    """A search over planted losses, whose windows differ in difficulty."""
    start = frozenset(int(n) for n in np.argsort(-losses)[: len(losses) // 3])
    search = SkipSearch(len(losses), start, max_score=1.1, max_steps=steps, seed=seed, **options)
    draw, difficulty = np.random.default_rng(seed), 0.0
    while not search.is_done:
        difficulty = float(draw.uniform(0, 0.5)) if search.wants_window else difficulty
        units = search.next_set()
        search.hear(units, score(units, losses, difficulty=difficulty))
    return search


@pytest.mark.parametrize("seed", range(5))
def test_a_planted_set_is_found_from_the_worst_start(seed: int) -> None:
    losses = planted(24, seed)
    search = searched(losses, steps=120, seed=seed)
    assert score(search.start, losses) < 0.2
    assert score(search.best, losses) > 0.9


def test_the_model_of_differences_pays() -> None:
    """Bayesian steps between random ones beat random ones alone, over several problems."""
    reached = {every: [] for every in (2, 10_000)}
    for every, values in reached.items():
        for seed in range(6):
            losses = planted(32, seed)
            values.append(score(searched(losses, steps=60, seed=seed, bayes_every=every).best, losses))
    assert np.mean(reached[2]) > np.mean(reached[10_000]) + 0.05


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 12), st.integers(0, 2**32 - 1), st.data())
def test_every_set_has_the_size_of_the_first(num_units: int, seed: int, data: st.DataObject) -> None:
    start = frozenset(data.draw(st.sets(st.integers(0, num_units - 1), min_size=1, max_size=num_units - 1)))
    search = SkipSearch(num_units, start, max_score=1.1, max_steps=25, seed=seed)
    windows = 0
    while not search.is_done:
        windows += search.wants_window
        units = search.next_set()
        assert units == search.next_set(), "asking changes nothing"
        assert len(units) == len(start)
        assert units <= set(range(num_units))
        search.hear(units, data.draw(st.floats(0.0, 1.0)))
        assert len(search.best) == len(start)
    assert search.num_steps == 25
    assert windows >= 25 // (search.per_window + 1)


def test_sets_are_compared_on_one_window_only() -> None:
    """A window on which everything scores higher makes no candidate look better."""
    losses = np.full(6, 0.1)
    start = frozenset({0, 1})
    search = SkipSearch(6, start, max_score=1.1, max_steps=60)
    window = 0
    while not search.is_done:
        window += search.wants_window
        units = search.next_set()
        search.hear(units, score(units, losses, difficulty=1.0 / window))
    assert window > 5
    assert search.best == start


def test_a_lucky_set_is_tried_again_against_its_predecessor() -> None:
    search = SkipSearch(6, frozenset({0, 1}), max_score=1.1, per_window=3)
    heard = []
    while len(heard) < 6:
        units = search.next_set()
        heard.append((search.wants_window, units))
        lucky = len(heard) == 2
        search.hear(units, 1.0 if lucky else 0.5 + 0.1 * (units == search.start))
    (_, first), (_, candidate), *_ = heard
    assert first == search.start
    second_window = [units for _, units in heard[4:]]
    assert second_window == [candidate, search.start]
    assert search.best == search.start


def test_the_end_is_a_good_set_or_the_last_step_or_nothing_to_exchange() -> None:
    search = SkipSearch(4, frozenset({0}), max_score=0.9, max_steps=3)
    assert not search.is_done
    search.hear(search.next_set(), 0.95)
    assert search.is_done
    search.reset()
    assert not search.is_done
    for _ in range(3):
        search.hear(search.next_set(), 0.1)
    assert search.is_done
    assert SkipSearch(2, frozenset({0, 1})).is_done
    assert SkipSearch(2, frozenset()).is_done


def test_a_reset_search_repeats_itself() -> None:
    losses = planted(12, 3)
    search = searched(losses, steps=30)
    best = search.best
    search.reset()
    assert search.best == search.start
    again = searched(losses, steps=30)
    assert again.best == best
