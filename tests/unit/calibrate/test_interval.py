from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from selfspec_calibrate.interval import MIN_PROMPTS, ratio_interval

Array = NDArray[np.float64]
Ratios = Callable[[np.random.Generator, tuple[int, ...]], Array]

seconds = st.lists(st.tuples(st.floats(0.1, 100.0), st.floats(0.1, 100.0)), min_size=1, max_size=30)


def _mild(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return 1.3 * random.lognormal(0.0, 0.1, shape)


def _wide(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return 1.3 * random.lognormal(0.0, 0.4, shape)


def _skewed(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return 1.0 + random.exponential(0.5, shape)


def _few_fast(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.where(random.random(shape) < 0.2, 3.0, 1.05) * random.lognormal(0.0, 0.03, shape)


def _ends(ratios: Ratios, num_prompts: int, *, trials: int = 2_000) -> tuple[Array, Array, float]:
    """Lower and upper ends over many samples, and the true ratio; lengths vary twofold."""
    random = np.random.default_rng(7)
    plain = random.lognormal(0.0, 0.6, (trials, num_prompts))
    plan = plain / ratios(random, plain.shape)
    intervals = [ratio_interval(list(a), list(b)) for a, b in zip(plain, plan, strict=True)]
    many = random.lognormal(0.0, 0.6, 400_000)
    truth = float(many.sum() / (many / ratios(random, many.shape)).sum())
    low = np.array([each.low for each in intervals], dtype=float)
    high = np.array([each.high for each in intervals], dtype=float)
    return low, high, truth


@pytest.mark.parametrize("num_prompts", [5, 20])
@pytest.mark.parametrize("ratios", [_mild, _wide, _skewed])
def test_at_least_nine_in_ten_intervals_hold_the_true_ratio(ratios: Ratios, num_prompts: int) -> None:
    low, high, truth = _ends(ratios, num_prompts)
    coverage = float(np.mean((low <= truth) & (truth <= high)))
    assert 0.90 <= coverage <= 0.98


@pytest.mark.parametrize("num_prompts", [5, 20])
def test_where_few_prompts_gain_much_the_interval_errs_on_the_safe_side(num_prompts: int) -> None:
    low, _high, truth = _ends(_few_fast, num_prompts)
    assert float(np.mean(low > truth)) < 0.01


def test_no_gain_is_rarely_taken_for_one() -> None:
    low, _high, _truth = _ends(lambda random, shape: random.lognormal(0.0, 0.1, shape), 5)
    assert float(np.mean(low > 1.0)) < 0.05


@given(seconds)
def test_the_value_is_the_ratio_of_totals_and_lies_within(pairs: list[tuple[float, float]]) -> None:
    plain, plan = zip(*pairs, strict=True)
    interval = ratio_interval(plain, plan)
    assert interval.value == pytest.approx(math.fsum(plain) / math.fsum(plan))
    if len(pairs) < MIN_PROMPTS:
        assert interval.low is None
        assert interval.high is None
    else:
        assert interval.low is not None
        assert interval.high is not None
        assert 0 < interval.low <= interval.value * (1 + 1e-12)
        assert interval.value <= interval.high * (1 + 1e-12)


@given(seconds.filter(lambda pairs: len(pairs) >= MIN_PROMPTS))
def test_exchanging_the_sides_inverts_the_interval(pairs: list[tuple[float, float]]) -> None:
    plain, plan = zip(*pairs, strict=True)
    forward, backward = ratio_interval(plain, plan), ratio_interval(plan, plain)
    assert backward.low == pytest.approx(1 / forward.high, rel=1e-6)
    assert backward.high == pytest.approx(1 / forward.low, rel=1e-6)


def test_pairing_removes_what_prompts_differ_in() -> None:
    plain = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    interval = ratio_interval(plain, [each / 1.5 for each in plain])
    assert interval.low == pytest.approx(1.5)
    assert interval.high == pytest.approx(1.5)


def test_a_higher_level_is_wider() -> None:
    plain, plan = [1.0, 1.1, 0.9, 1.0, 1.2], [0.8, 1.0, 0.7, 0.9, 0.8]
    narrow, wide = ratio_interval(plain, plan, level=0.8), ratio_interval(plain, plan, level=0.99)
    assert wide.low < narrow.low < narrow.high < wide.high
    assert wide.level == 0.99


@pytest.mark.parametrize(("plain", "plan"), [([], []), ([1.0], [1.0, 2.0]), ([1.0, 0.0], [1.0, 1.0])])
def test_what_cannot_be_compared_is_refused(plain: list[float], plan: list[float]) -> None:
    with pytest.raises(ValueError, match="positive seconds"):
        ratio_interval(plain, plan)
