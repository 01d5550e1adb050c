from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfspec_calibrate.textbook import best_num_draft_tokens, ceiling, expected_speedup, expected_tokens
from selfspec_runtime.errors import UsageError

acceptances = st.floats(0.0, 1.0)
ratios = st.floats(0.01, 2.0)
drafts = st.integers(0, 16)


@pytest.mark.parametrize(
    ("acceptance", "ratio", "num_draft_tokens", "tokens", "speedup"),
    [(0.7, 0.25, 4, 2.77, 1.39), (0.78, 0.1, 4, 3.23, 2.31)],
)
def test_worked_examples(acceptance: float, ratio: float, num_draft_tokens: int, tokens: float, speedup: float) -> None:
    assert round(expected_tokens(acceptance, num_draft_tokens), 2) == tokens
    assert round(expected_speedup(acceptance, ratio, num_draft_tokens), 2) == speedup


@pytest.mark.parametrize(
    ("acceptance", "ratio", "speedup", "num_draft_tokens"),
    [
        (0.6, 0.25, 1.26, 2),
        (0.7, 0.25, 1.41, 2),
        (0.8, 0.40, 1.32, 2),
        (0.9, 0.50, 1.35, 3),
        (0.95, 0.25, 2.43, 9),
        (0.98, 0.55, 1.53, 8),
    ],
)
def test_best_drafts_of_the_published_table(
    acceptance: float, ratio: float, speedup: float, num_draft_tokens: int
) -> None:
    best = best_num_draft_tokens(acceptance, ratio, verify_cost_ratio=1.05)
    assert best == num_draft_tokens
    assert expected_speedup(acceptance, ratio, best, 1.05) == pytest.approx(speedup, abs=0.006)


@given(acceptances, drafts)
def test_tokens_equal_the_law_of_the_first_rejection(acceptance: float, num_draft_tokens: int) -> None:
    lengths = [acceptance**n * (1 - acceptance) * (n + 1) for n in range(num_draft_tokens)]
    total = sum(lengths) + acceptance**num_draft_tokens * (num_draft_tokens + 1)
    assert expected_tokens(acceptance, num_draft_tokens) == pytest.approx(total)


@given(acceptances, ratios, drafts)
def test_no_plan_exceeds_the_ceiling(acceptance: float, ratio: float, num_draft_tokens: int) -> None:
    assert expected_speedup(acceptance, ratio, num_draft_tokens) <= ceiling(ratio) * (1 + 1e-12)


def test_the_ceiling_is_approached_by_long_perfect_drafts() -> None:
    assert expected_speedup(1.0, 0.25, 4000) == pytest.approx(ceiling(0.25), rel=1e-3)
    assert ceiling(0.0) == math.inf
    assert ceiling(1.6) == 1.0


@given(acceptances, ratios, st.floats(1.0, 3.0))
def test_the_best_number_is_best(acceptance: float, ratio: float, verify: float) -> None:
    best = best_num_draft_tokens(acceptance, ratio, verify_cost_ratio=verify)
    reached = expected_speedup(acceptance, ratio, best, verify) if best else 1.0
    assert reached >= 1.0
    assert reached >= max(expected_speedup(acceptance, ratio, n, verify) for n in range(1, 17))


def test_a_draft_as_dear_as_the_target_is_not_worth_drafting() -> None:
    assert best_num_draft_tokens(0.99, 1.0) == 0


@pytest.mark.parametrize("acceptance", [-0.1, 1.1, math.nan])
def test_impossible_acceptance_is_refused(acceptance: float) -> None:
    with pytest.raises(UsageError, match="acceptance rate"):
        expected_tokens(acceptance, 4)


@pytest.mark.parametrize(
    ("ratio", "verify", "num_draft_tokens"), [(-0.1, 1.0, 2), (math.nan, 1.0, 2), (0.5, 0.0, 2), (0.5, 1.0, -1)]
)
def test_impossible_costs_are_refused(ratio: float, verify: float, num_draft_tokens: int) -> None:
    with pytest.raises(UsageError, match="textbook law has no meaning"):
        expected_speedup(0.5, ratio, num_draft_tokens, verify)


def test_more_drafts_than_there_are_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="Give 0 to 10000"):
        expected_tokens(0.5, 99_999_999_999)


def test_needs_no_torch() -> None:
    code = "import sys, selfspec_calibrate.textbook; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
