from __future__ import annotations

import pytest
from tests.support.planted_space import some_space

from selfspec_calibrate.neighbours import controller_neighbours, neighbours, skip_neighbours, source_neighbours
from selfspec_calibrate.seeds import seed_plans
from selfspec_calibrate.skip_ranking import positions_of
from selfspec_runtime.controllers.confidence import ConfidenceSpec
from selfspec_runtime.controllers.fixed import FixedSpec
from selfspec_runtime.layer_skip import LayerSkipSet
from selfspec_runtime.plan import DraftPlan
from selfspec_runtime.schedulers.saguaro import SaguaroSpec

SPACE = some_space()


def plan_of(source: dict[str, object], **controller: object) -> DraftPlan:
    return DraftPlan.model_validate({"source": source, "controller": controller or {"kind": "fixed"}})


def described(source: dict[str, object]) -> list[str]:
    return [other.describe() for other in source_neighbours(plan_of(source).source, SPACE)]


@pytest.mark.parametrize("plan", seed_plans(SPACE), ids=lambda plan: plan.describe())
def test_neighbours_are_different_plans_that_the_model_can_run(plan: DraftPlan) -> None:
    found = neighbours(plan, SPACE)
    assert len(found) >= 4
    assert len(set(found)) == len(found)
    assert plan not in found
    for other in found:
        other.validate_for(SPACE.num_layers)
        assert 1 <= other.max_draft_tokens <= SPACE.max_draft_tokens
        assert (other.source == plan.source) != (other.controller == plan.controller), "one thing at a time"


def test_drafts_go_up_and_down_by_one_and_by_two() -> None:
    found = controller_neighbours(FixedSpec(num_draft_tokens=4), SPACE)
    assert [c.num_draft_tokens for c in found if c.kind == "fixed"] == [5, 3, 8, 2]
    assert [c.kind for c in found].count("confidence") == 1
    assert all(c.kind == "fixed" for c in controller_neighbours(FixedSpec(num_draft_tokens=4), SPACE, lookup=True))


def test_drafts_stay_in_bounds() -> None:
    assert [c.num_draft_tokens for c in controller_neighbours(FixedSpec(num_draft_tokens=1), SPACE, lookup=True)] == [2]
    assert [c.num_draft_tokens for c in controller_neighbours(FixedSpec(num_draft_tokens=8), SPACE, lookup=True)] == [
        7,
        4,
    ]


@pytest.mark.parametrize(("threshold", "moved"), [(0.6, {0.7, 0.5}), (0.9, {0.95, 0.8}), (0.1, {0.2})])
def test_thresholds_move_by_a_tenth(threshold: float, moved: set[float]) -> None:
    start = ConfidenceSpec(num_draft_tokens=8, draft_confidence_threshold=threshold)
    found = [c for c in controller_neighbours(start, SPACE) if c.kind == "confidence" and c.num_draft_tokens == 8]
    assert {c.draft_confidence_threshold for c in found} == moved
    assert FixedSpec(num_draft_tokens=8) in controller_neighbours(start, SPACE)


def test_exits_move_by_one_layer_and_change_heads() -> None:
    assert described({"kind": "early_exit", "exit_layer": 8}) == [
        "exit after layer 8, linear head",
        "exit after layer 7",
        "exit after layer 9",
    ]
    assert described({"kind": "early_exit", "exit_layer": 3}) == ["exit after layer 2", "exit after layer 4"]
    assert described({"kind": "early_exit", "exit_layer": 6, "head": "linear"}) == [
        "exit after layer 6",
        "exit after layer 7, linear head",
    ]


@pytest.mark.parametrize(("rank", "others"), [(None, {16}), (16, {4, None}), (4, {16})])
def test_ranks_move_to_the_next_and_the_whole_is_the_highest(rank: int | None, others: set[int | None]) -> None:
    space = some_space(linear_ranks=(4, 16))
    source = plan_of({"kind": "early_exit", "exit_layer": 8, "head": "linear", "rank": rank}).source
    found = source_neighbours(source, space)
    assert {other.rank for other in found if other.head == "linear" and other.exit_layer == 8} == others
    assert all(other.rank == rank for other in found if other.head == "linear" and other.exit_layer != 8)


def test_skip_sets_gain_or_lose_one_sub_layer_the_likeliest_first() -> None:
    skip = LayerSkipSet(attention=frozenset({5, 9}), mlp=frozenset({2}))
    found = skip_neighbours(skip, SPACE)
    here = positions_of(skip)
    assert all(len(positions_of(other) ^ here) == 1 for other in found)
    assert len(found) == len(SPACE.ranking.candidates)
    # The cheapest to leave out of what is left, and the dearest to take back.
    assert [other.describe() for other in found[:2]] == ["skip A5,9-10 M2", "skip A5,9"]


def test_a_skip_set_never_becomes_empty() -> None:
    assert "skip nothing" not in described({"kind": "layer_skip", "skip": {"mlp": [4]}})


def test_quantised_copies_change_heads_and_small_skip_sets() -> None:
    found = source_neighbours(plan_of({"kind": "quantized", "skip": {"mlp": [4, 5, 6]}}).source, SPACE)
    assert len([1 for other in found if other.quantize_head]) == 1
    assert max(len(other.skip) for other in found) == SPACE.max_skipped_quantized == 3
    assert min(len(other.skip) for other in found) == 2


def test_lookups_move_their_bounds() -> None:
    moved = described({"kind": "ngram", "min_match": 2, "max_match": 3})
    assert moved == ["n-gram 2-4", "n-gram 2-2", "n-gram 3-3", "n-gram 1-3"]
    assert described({"kind": "ngram", "min_match": 1, "max_match": 1}) == ["n-gram 1-2"]


def test_suffixes_move_their_shortest_match_and_their_reach() -> None:
    start = plan_of({"kind": "suffix", "min_match": 1, "tokens_per_match": 4.0}).source
    found = [(o.min_match, o.tokens_per_match, o.min_probability) for o in source_neighbours(start, SPACE)]
    assert found == [(2, 4.0, 0.1), (1, 8.0, 0.1), (1, 2.0, 0.1), (1, 4.0, 0.0), (1, 4.0, 0.3)]
    first = plan_of({"kind": "ngram_first", "ngram": start.model_dump(), "then": {"kind": "quantized"}}).source
    lookups = [other.ngram for other in source_neighbours(first, SPACE) if other.then == first.then]
    assert [lookup for lookup in lookups if lookup.num_draft_tokens is None] == source_neighbours(start, SPACE)
    assert {lookup.num_draft_tokens for lookup in lookups} == {None, 8, 4}
    controllers = {other.controller.kind for other in neighbours(DraftPlan(source=start), SPACE)}
    assert controllers == {"fixed"}, "a lookup has no confidence to stop at"


def test_compositions_move_either_part() -> None:
    source = {"kind": "ngram_first", "ngram": {"kind": "ngram", "num_draft_tokens": 4}, "then": {"kind": "quantized"}}
    found = source_neighbours(plan_of(source).source, SPACE)
    start = plan_of(source).source
    assert all((other.ngram == start.ngram) != (other.then == start.then) for other in found)
    assert {other.ngram.num_draft_tokens for other in found if other.then == start.then} >= {None, 5, 3, 8, 2}


@pytest.mark.parametrize(
    ("source", "field", "counts"),
    [
        ({"kind": "clasp", "num_skipped": 4}, "num_skipped", {8, 2}),
        ({"kind": "clasp", "num_skipped": 1}, "num_skipped", {2}),
        ({"kind": "tree", "chain": {"kind": "quantized"}, "max_branches": 2}, "max_branches", {4, 1}),
        ({"kind": "quantized", "vocab_size": 100}, "vocab_size", {200, 50}),
    ],
)
def test_what_a_source_counts_is_doubled_and_halved(source: dict[str, object], field: str, counts: set[int]) -> None:
    plan = DraftPlan.model_validate({"source": source})
    found = [other.source for other in neighbours(plan, some_space())]
    other_counts = {getattr(other, field) for other in found if other is not None} - {source[field]}
    assert other_counts == counts


def test_neighbours_of_a_reduced_head_keep_it() -> None:
    skips = {"kind": "layer_skip", "skip": {"mlp": [3, 4]}, "vocab_size": 100}
    exits = {"kind": "early_exit", "exit_layer": 8, "vocab_size": 100}
    for source in (skips, exits):
        found = [other.source for other in neighbours(DraftPlan.model_validate({"source": source}), some_space())]
        assert len(found) > 4
        assert all(other.vocab_size in (50, 100, 200) for other in found)  # type: ignore[union-attr]


def test_a_learning_controller_changes_its_length_alone() -> None:
    costs = {"draft_cost": 0.5, "verify_cost": [1.0]}
    controller = {"kind": "thompson", "num_draft_tokens": 4, "costs": costs}
    plan = DraftPlan.model_validate({"source": {"kind": "ngram"}, "controller": controller})
    found = [other.controller for other in neighbours(plan, some_space()) if other.controller != plan.controller]
    assert {other.max_draft_tokens for other in found} == {2, 3, 5, 8}
    assert {other.kind for other in found} == {"thompson"}


def test_neighbours_keep_the_scheduler() -> None:
    plan = plan_of({"kind": "ngram"}).model_copy(update={"scheduler": SaguaroSpec()})
    assert {other.scheduler for other in neighbours(plan, SPACE)} == {SaguaroSpec()}
