from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfspec_calibrate.budget import LENGTHS, VERDICT_RUNS, VERDICT_SHARE, Pace, plan_allowance


def test_the_longest_length_whose_verdict_fits_is_taken() -> None:
    pace = Pace(token_s=0.03, prefill_s=0.2)
    allowance = plan_allowance(pace, budget_s=600, num_search=20, num_held_out=20)
    fits = [n for n in LENGTHS if 20 * VERDICT_RUNS * (0.2 + 0.03 * n) <= VERDICT_SHARE * 600]
    assert allowance.max_new_tokens == fits[0] == 48
    assert allowance.num_held_out == 20


def test_prompts_are_left_out_only_where_the_shortest_generations_do_not_fit() -> None:
    slow = Pace(token_s=1.0, prefill_s=5.0)
    allowance = plan_allowance(slow, budget_s=3600, num_search=100, num_held_out=100)
    assert allowance.max_new_tokens == LENGTHS[-1]
    assert 4 <= allowance.num_held_out < 100
    assert allowance.verdict_s <= VERDICT_SHARE * 3600


def test_a_hopelessly_small_budget_still_measures_something() -> None:
    allowance = plan_allowance(Pace(token_s=2.0, prefill_s=9.0), budget_s=10, num_search=20, num_held_out=20)
    assert (allowance.num_search, allowance.num_held_out) == (4, 4)


def test_the_users_own_length_is_kept() -> None:
    pace = Pace(token_s=0.5, prefill_s=0.2)
    allowance = plan_allowance(pace, budget_s=60, num_search=9, num_held_out=9, max_new_tokens=100)
    assert allowance.max_new_tokens == 100


@given(
    token_s=st.floats(1e-4, 2),
    prefill_s=st.floats(1e-4, 10),
    budget_s=st.floats(10, 1e5),
    prompts=st.integers(1, 500),
)
def test_more_budget_never_buys_less(token_s: float, prefill_s: float, budget_s: float, prompts: int) -> None:
    pace = Pace(token_s=token_s, prefill_s=prefill_s)
    small = plan_allowance(pace, budget_s=budget_s, num_search=prompts, num_held_out=prompts)
    large = plan_allowance(pace, budget_s=2 * budget_s, num_search=prompts, num_held_out=prompts)
    assert large.max_new_tokens >= small.max_new_tokens
    assert 1 <= small.num_held_out <= prompts
    assert 1 <= small.num_search <= prompts
    assert small.num_held_out * small.max_new_tokens <= large.num_held_out * large.max_new_tokens


def test_several_samplings_share_the_verdict() -> None:
    pace = Pace(token_s=0.03, prefill_s=0.2)
    one = plan_allowance(pace, budget_s=600, num_search=20, num_held_out=20)
    three = plan_allowance(pace, budget_s=600, num_search=20, num_held_out=20, num_samplings=3)
    assert three.max_new_tokens < one.max_new_tokens
    one_sampling_s = three.num_held_out * VERDICT_RUNS * pace.generation_s(three.max_new_tokens)
    assert three.verdict_s == pytest.approx(3 * one_sampling_s)
