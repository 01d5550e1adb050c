from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.scripted import ScriptedEngine

from selfspec_calibrate.measurement import MeasuredPrompt, measure
from selfspec_calibrate.pair import PromptPair, speedup, speedup_interval
from selfspec_runtime.generation import GenerationSettings

SETTINGS = GenerationSettings(max_new_tokens=100)


def _pair(plain_s: float, plain_tokens: int, plan_s: float, plan_tokens: int, prompt_id: str = "a") -> PromptPair:
    return PromptPair(
        prompt_id=prompt_id,
        kind="chat",
        plain_s=plain_s,
        plain_tokens=plain_tokens,
        plan_s=plan_s,
        plan_tokens=plan_tokens,
    )


pairs = st.builds(_pair, st.floats(0.1, 100), st.integers(1, 500), st.floats(0.1, 100), st.integers(1, 500))


def test_runs_of_a_prompt_are_added_up() -> None:
    prompt = MeasuredPrompt("a", "code", (1,))
    plain = [measure(ScriptedEngine(token_s=s, num_tokens=11), prompt, SETTINGS, arm="plain") for s in (1.0, 3.0)]
    plan = [measure(ScriptedEngine(token_s=1.0, num_tokens=6), prompt, SETTINGS, arm="plan")]
    pair = PromptPair.of(plain, plan)
    assert pair == PromptPair(prompt_id="a", kind="code", plain_s=40.0, plain_tokens=20, plan_s=5.0, plan_tokens=5)
    assert pair.ratio == pytest.approx(2.0)


def test_with_equal_text_the_speedup_is_a_ratio_of_measured_totals() -> None:
    assert speedup([_pair(10, 10, 5, 10), _pair(30, 20, 30, 20, "b")]) == pytest.approx(40 / 35)


def test_a_gain_counts_for_the_time_that_it_saves() -> None:
    """A mean of ratios would say 5.05 here."""
    assert speedup([_pair(1, 10, 0.1, 10), _pair(100, 10, 1000, 10, "b")]) == pytest.approx(101 / 1000.1)


def test_longer_text_of_one_side_does_not_change_what_a_prompt_weighs() -> None:
    """The plan writes ten times as much on the prompt on which it is fast; pooled totals would say 1.83."""
    fast, slow = _pair(10, 10, 50, 100), _pair(10, 10, 10, 10, "b")
    pooled = (20 / 20) / (60 / 110)
    fair = speedup([fast, slow])
    assert pooled == pytest.approx(1.83, abs=0.01)
    assert fair == pytest.approx((55 + 10) / (27.5 + 10))


@given(pairs)
def test_one_prompt_gives_its_own_ratio(pair: PromptPair) -> None:
    expected = (pair.plain_s / pair.plain_tokens) / (pair.plan_s / pair.plan_tokens)
    assert pair.ratio == pytest.approx(expected)
    assert speedup([pair]) == pytest.approx(expected)


@given(st.lists(pairs, min_size=1, max_size=20))
def test_the_speedup_lies_between_the_smallest_and_the_largest_ratio(many: list[PromptPair]) -> None:
    ratios = [pair.ratio for pair in many]
    value = speedup(many)
    assert min(ratios) * (1 - 1e-9) <= value <= max(ratios) * (1 + 1e-9)
    assert speedup_interval(many).value == pytest.approx(value)


def test_what_was_not_timed_counts_for_nothing() -> None:
    timed, ended_at_once = _pair(10, 10, 5, 10), _pair(0, 0, 0, 0, "b")
    assert not ended_at_once.is_timed
    assert speedup([timed, ended_at_once]) == 2.0
    assert speedup([ended_at_once]) is None
    assert speedup_interval([ended_at_once]) is None
    assert speedup([]) is None


def test_runs_from_another_time_are_added_and_survive_json() -> None:
    both = _pair(10, 10, 5, 10).plus(_pair(20, 10, 5, 10))
    assert both == _pair(30, 20, 10, 20)
    assert PromptPair(**asdict(both)) == both
