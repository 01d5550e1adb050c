from __future__ import annotations

import pytest
from tests.support.planted_space import some_space

from selfspec_calibrate.seeds import seed_plans, skip_seeds

#: Families whose plans a trace can replay; the others begin from the best of these.
SEEDED = {"early_exit", "layer_skip", "quantized", "ngram", "suffix", "ngram_first"}


@pytest.mark.parametrize("num_layers", [2, 3, 4, 24, 32, 80])
def test_seeds_are_different_plans_that_the_model_can_run(num_layers: int) -> None:
    space = some_space(num_layers)
    plans = seed_plans(space)
    assert len(set(plans)) == len(plans)
    assert {plan.source.kind for plan in plans} == SEEDED
    for plan in plans:
        assert not plan.is_plain
        plan.validate_for(num_layers)
        assert plan.max_draft_tokens <= space.max_draft_tokens


def test_only_searched_families_are_seeded() -> None:
    space = some_space(families=("ngram", "layer_skip"), sensitivity=None)
    assert {plan.source.kind for plan in seed_plans(space)} == {"ngram"}


def test_early_exits_begin_at_a_quarter_and_linear_heads_where_they_are_fitted() -> None:
    plans = [plan.source for plan in seed_plans(some_space(24, linear_exits=(12, 18, 22)))]
    exits = [source for source in plans if source.kind == "early_exit"]
    assert min(source.exit_layer for source in exits) == 6
    assert {source.exit_layer for source in exits if source.head == "linear"} == {12, 18, 22}


def test_linear_heads_begin_whole_and_at_the_highest_rank() -> None:
    plans = [plan.source for plan in seed_plans(some_space(24, linear_exits=(12, 18), linear_ranks=(4, 16)))]
    linear = {(s.exit_layer, s.rank) for s in plans if s.kind == "early_exit" and s.head == "linear"}
    assert linear == {(12, None), (12, 16), (18, None), (18, 16)}


def test_lookups_draft_two_four_and_eight() -> None:
    plans = [plan for plan in seed_plans(some_space()) if plan.source.kind == "ngram"]
    assert {(plan.source.min_match, plan.source.max_match) for plan in plans} == {(1, 3), (2, 4)}
    assert {plan.controller.num_draft_tokens for plan in plans} == {2, 4, 8}
    suffixes = [plan for plan in seed_plans(some_space()) if plan.source.kind == "suffix"]
    assert {(plan.source.min_match, plan.controller.num_draft_tokens) for plan in suffixes} == {
        (shortest, drafts) for shortest in (1, 2) for drafts in (2, 4, 8)
    }


@pytest.mark.parametrize("allowed", [("ngram",), ("suffix",), ("ngram", "suffix")])
def test_only_allowed_lookups_come_before_passes(allowed: tuple[str, ...]) -> None:
    plans = seed_plans(some_space(families=("ngram_first", *allowed)))
    assert {plan.source.ngram.kind for plan in plans if plan.source.kind == "ngram_first"} == set(allowed)


def test_a_short_limit_shortens_the_seeds() -> None:
    assert max(plan.max_draft_tokens for plan in seed_plans(some_space(max_draft_tokens=3))) == 3


def test_published_skip_sets_are_among_the_seeds_at_their_ratios() -> None:
    seeds = skip_seeds(some_space(40))
    # Draft&Verify: 42.5 % of 80 sub-layers, two attentions to an MLP, in the late middle.
    assert any(len(skip.attention) == 23 and len(skip.mlp) == 11 and 26 in skip.mlp for skip in seeds)
    # SWIFT: odd layers, both sub-layers, 45 % of the inner ones.
    assert any(len(skip) == 34 and all(layer % 2 for layer in skip.attention | skip.mlp) for skip in seeds)
    # CLaSp and KnapSpec: a quarter of the layers, whole.
    assert any(len(skip.attention) == 10 and skip.attention == skip.mlp for skip in seeds)


def test_ranked_seeds_go_from_one_sub_layer_to_most() -> None:
    space = some_space(24)
    sizes = {len(skip) for skip in skip_seeds(space)}
    assert {1, 2, 3} <= sizes
    assert max(sizes) >= 0.55 * 48
    assert max(sizes) <= space.max_skipped
    assert space.ranking.ranked(1) in skip_seeds(space)


def test_there_are_no_skip_seeds_without_sensitivities() -> None:
    assert skip_seeds(some_space(sensitivity=None)) == ()
