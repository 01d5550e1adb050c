from __future__ import annotations

import warnings

import optuna
import pytest

from selfspec_calibrate.early_stop import is_hopeless, wilcoxon_pruner
from selfspec_calibrate.pair import PromptPair


def _pairs(ratios: dict[str, float], *, kinds: str = "xy") -> dict[str, PromptPair]:
    return {
        key: PromptPair(
            prompt_id=key, kind=kinds[index % len(kinds)], plain_s=ratio, plain_tokens=5, plan_s=1.0, plan_tokens=5
        )
        for index, (key, ratio) in enumerate(ratios.items())
    }


@pytest.mark.parametrize(
    ("ratios", "best", "hopeless"),
    [
        ({"a": 0.7, "b": 0.7}, None, True),
        ({"a": 0.8, "b": 0.8}, None, False),
        ({"a": 0.5}, None, False),
        ({"a": 1.2, "b": 1.2}, {"a": 2.0, "b": 2.0}, True),
        ({"a": 1.6, "b": 1.6}, {"a": 2.0, "b": 2.0}, False),
        # The best plan is slow on these very prompts too.
        ({"a": 0.9, "b": 0.9}, {"a": 1.0, "b": 1.0, "c": 9.0}, False),
        # Slower than plain decoding is no standard.
        ({"a": 0.7, "b": 0.7}, {"a": 0.5, "b": 0.5}, True),
        ({"a": 0.1, "b": 0.1}, {"c": 2.0}, False),
    ],
)
def test_far_behind_on_the_same_prompts_is_hopeless(
    ratios: dict[str, float], best: dict[str, float] | None, hopeless: bool
) -> None:
    assert is_hopeless(_pairs(ratios), None if best is None else _pairs(best), num_kinds=2) is hopeless


def test_no_plan_is_hopeless_before_it_has_seen_each_kind() -> None:
    one_kind = _pairs({"a": 0.1, "b": 0.1, "c": 0.1}, kinds="x")
    assert not is_hopeless(one_kind, None, num_kinds=2)
    assert is_hopeless(one_kind, None, num_kinds=1)


def _pruned_after(differences: list[float], *, num_kinds: int = 1) -> int | None:
    """Number of prompts after which a trial is pruned that is so much behind plain decoding."""
    study = optuna.create_study(direction="maximize", pruner=wilcoxon_pruner(num_kinds))
    plain = study.ask()
    for step in range(len(differences)):
        plain.report(1.0, step)
    study.tell(plain, 1.0)
    trial = study.ask()
    for step, difference in enumerate(differences):
        trial.report(1.0 - difference, step)
        if trial.should_prune():
            return step + 1
    return None


def test_four_losses_of_four_are_enough() -> None:
    assert _pruned_after([0.02, 0.03, 0.01, 0.05, 0.02, 0.02]) == 4


def test_but_not_before_each_kind_was_seen() -> None:
    assert _pruned_after([0.02, 0.03, 0.01, 0.05, 0.02, 0.04, 0.03, 0.02], num_kinds=6) == 6


def test_gains_on_some_prompts_keep_a_trial_alive() -> None:
    assert _pruned_after([0.02, -0.5, 0.01, -0.6, 0.02, -0.5]) is None


def test_making_the_pruner_warns_nobody() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wilcoxon_pruner(1)
