"""What choosing costs is counted, and never more than decoding has paid for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfspec_runtime.drafts.overhead import Overhead, SearchBudget

SHARES = st.floats(0.0, 0.5)
EVENTS = st.lists(st.tuples(st.booleans(), st.integers(1, 40), st.integers(1, 64)), max_size=60)


@given(SHARES, st.floats(0.0, 1.0), EVENTS)
def test_the_share_is_kept_at_any_time(share: float, row_cost: float, happened: list[tuple[bool, int, int]]) -> None:
    budget = SearchBudget(share, row_cost)
    for is_search, layers, rows in happened:
        work = budget.pass_work(layers, rows)
        if not is_search:
            budget.decoded(work)
        elif budget.allows(work):
            budget.searched(work, num_rows=rows, seconds=0.5)
        assert budget.spent.work <= share * budget.spent.decode_work + 1e-9
        assert budget.spent.share <= share + 1e-9


def test_a_step_waits_until_it_is_paid_for_and_no_longer() -> None:
    budget = SearchBudget(0.05, 1.0)
    work = budget.pass_work(4, 24)
    rounds = 0
    while not budget.allows(work):
        budget.decoded(budget.pass_work(8, 5))
        rounds += 1
    assert rounds == 48  # 96 layers times tokens are five hundredths of 48 rounds of 40


def test_layers_times_tokens_or_flat_passes() -> None:
    assert SearchBudget(0.1, 1.0).pass_work(6, 5) == 30
    assert SearchBudget(0.1, 0.0).pass_work(6, 5) == 6
    assert SearchBudget(0.1, 0.25).pass_work(6, 5) == 12


def test_counts_add_up_and_are_forgotten() -> None:
    budget = SearchBudget(1.0, 1.0)
    budget.decoded(100.0)
    budget.searched(10.0, num_rows=5, seconds=0.25)
    budget.searched(20.0, num_rows=6, seconds=0.5)
    assert budget.spent == Overhead(2, 11, 30.0, 100.0, 0.75)
    assert budget.spent.share == pytest.approx(0.3)
    assert budget.spent + Overhead() == budget.spent
    budget.reset()
    assert budget.spent == Overhead()
    assert budget.spent.share == 0.0
