from __future__ import annotations

import warnings

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.planted_space import some_space

from selfspec_calibrate.plan_params import enqueue, params_of, suggest_plan
from selfspec_calibrate.search_space import MIN_PROBABILITIES, TOKENS_PER_MATCH
from selfspec_calibrate.seeds import seed_plans
from selfspec_calibrate.skip_ranking import positions_of, skip_set_of
from selfspec_runtime.drafts.skipped import LayerSkipSpec
from selfspec_runtime.drafts.suffix import SuffixSpec
from selfspec_runtime.layer_skip import LayerSkipSet
from selfspec_runtime.plan import DraftPlan

SPACE = some_space()


def sampled_plans(count: int, seed: int = 0) -> list[DraftPlan]:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    return [suggest_plan(study.ask(), SPACE) for _ in range(count)]


def test_every_family_head_and_controller_is_drawn() -> None:
    plans = sampled_plans(300)
    assert {plan.source.kind for plan in plans} == set(SPACE.searched)
    assert {plan.controller.kind for plan in plans} == {"fixed", "confidence"}
    assert {plan.source.head for plan in plans if plan.source.kind == "early_exit"} == {"own", "linear"}
    assert {plan.source.quantize_head for plan in plans if plan.source.kind == "quantized"} == {False, True}
    composed = [plan.source for plan in plans if plan.source.kind == "ngram_first"]
    assert {source.then.kind for source in composed} == set(SPACE.pass_families)
    assert {source.ngram.kind for source in composed} == {"ngram", "suffix"}
    suffixes = [plan.source for plan in plans if plan.source.kind == "suffix"]
    assert {source.tokens_per_match for source in suffixes} == set(TOKENS_PER_MATCH)
    assert {source.min_probability for source in suffixes} == set(MIN_PROBABILITIES)


def test_low_ranks_are_drawn_and_told_where_there_are_any() -> None:
    space = some_space(families=("early_exit",), linear_ranks=(4, 16))
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    plans = [suggest_plan(study.ask(), space) for _ in range(60)]
    assert {plan.source.rank for plan in plans if plan.source.head == "linear"} == {None, 4, 16}
    assert {plan.source.rank for plan in plans if plan.source.head == "own"} == {None}
    for plan in plans:
        assert suggest_plan(optuna.trial.FixedTrial(params_of(plan, space)), space) == plan


def test_a_suffix_off_the_grid_is_told_by_the_nearest_numbers() -> None:
    plan = DraftPlan(source=SuffixSpec(min_match=9, tokens_per_match=2.9, min_probability=0.12))
    nearest = suggest_plan(optuna.trial.FixedTrial(params_of(plan, SPACE)), SPACE).source
    assert nearest == SuffixSpec(min_match=4, tokens_per_match=2.0, min_probability=0.1)


def test_drawn_plans_lie_in_the_space() -> None:
    for plan in sampled_plans(300, seed=1):
        plan.validate_for(SPACE.num_layers)
        assert 1 <= plan.max_draft_tokens <= SPACE.max_draft_tokens
        inner = getattr(plan.source, "then", plan.source)
        if inner.kind == "early_exit" and inner.head == "linear":
            assert inner.exit_layer in SPACE.linear_exits
        if inner.kind == "layer_skip":
            # Two flips may add to the budget; they never touch a sub-layer that is no candidate.
            assert 1 <= len(inner.skip) <= SPACE.max_skipped + 2
            assert not {0, SPACE.num_layers - 1} & (inner.skip.attention | inner.skip.mlp)
        if plan.source.kind in ("ngram", "suffix"):
            assert plan.controller.kind == "fixed", "a lookup has no confidence to stop at"


@pytest.mark.parametrize("plan", [*seed_plans(SPACE), *sampled_plans(60, seed=2)], ids=lambda plan: plan.describe())
def test_numbers_make_the_plan_again(plan: DraftPlan) -> None:
    again = suggest_plan(optuna.trial.FixedTrial(params_of(plan, SPACE)), SPACE)
    if getattr(plan.source, "then", plan.source).kind == "layer_skip":
        wanted, found = (getattr(each.source, "then", each.source).skip for each in (plan, again))
        assert abs(len(found) - len(wanted)) <= 3
        assert again.controller == plan.controller
    else:
        assert again == plan


@given(st.sets(st.integers(2, 21), min_size=1, max_size=2), st.integers(3, 8))
@settings(max_examples=30)
def test_sets_within_two_flips_of_a_rank_are_told_exactly(flipped: set[int], budget: int) -> None:
    skip = skip_set_of(positions_of(SPACE.ranking.ranked(budget)) ^ flipped)
    plan = DraftPlan(source=LayerSkipSpec(skip=skip))
    assert suggest_plan(optuna.trial.FixedTrial(params_of(plan, SPACE)), SPACE) == plan


def test_a_plan_that_was_asked_for_is_run_exactly() -> None:
    random = np.random.default_rng(0)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    inner = np.arange(1, SPACE.num_layers - 1)
    for size in (1, 4, 7):
        attention, mlp = (frozenset(random.choice(inner, size, replace=False).tolist()) for _ in range(2))
        plan = DraftPlan(source=LayerSkipSpec(skip=LayerSkipSet(attention=attention, mlp=mlp)))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            enqueue(study, plan, SPACE)
            trial = study.ask()
            assert suggest_plan(trial, SPACE) == plan
        assert trial.params["family"] == "layer_skip"
        assert abs(trial.params["skip.budget"] - 2 * size) <= 1


def test_without_sensitivities_no_skip_is_drawn() -> None:
    space = some_space(sensitivity=None)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    plans = [suggest_plan(study.ask(), space) for _ in range(100)]
    inner = [getattr(plan.source, "then", plan.source) for plan in plans]
    assert "layer_skip" not in {source.kind for source in inner}
    assert all(len(source.skip) == 0 for source in inner if source.kind == "quantized")
