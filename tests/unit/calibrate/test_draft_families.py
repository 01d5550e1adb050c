from __future__ import annotations

from typing import Any, get_args

import pytest
from tests.support.planted_space import some_space
from tests.support.planted_world import EXIT, FIRST, NF4, NGRAM, SKIPS, plan_of, some_world

from selfspec_calibrate.draft_families import TABLE, family_of, known_kinds
from selfspec_calibrate.family_world import SOURCE_KINDS
from selfspec_calibrate.plan_parts import array_names, is_replayed, sources_in
from selfspec_calibrate.settings import Family
from selfspec_calibrate.vocabulary_ranks import vocab_sizes
from selfspec_runtime.plan import PLAIN

COSTS = {"draft_cost": 0.5, "verify_cost": [1.0, 1.1]}
SUFFIX = {"kind": "suffix"}
SWIFT = {"kind": "swift", "skip": {"mlp": [3]}}


@pytest.mark.parametrize(
    ("source", "controller", "family"),
    [
        (EXIT, {}, "early_exit"),
        ({**EXIT, "head": "linear"}, {}, "linear_exit"),
        (SKIPS, {}, "layer_skip"),
        (NF4, {}, "quantized"),
        (NGRAM, {}, "ngram"),
        (FIRST, {}, "ngram_first"),
        (SWIFT, {}, "swift"),
        ({"kind": "clasp", "num_skipped": 2}, {}, "clasp"),
        ({"kind": "conf_layers"}, {}, "conf_layers"),
        ({"kind": "fewer_experts", "num_experts": 1}, {}, "fewer_experts"),
        ({**NF4, "vocab_size": 10}, {}, "reduced_head"),
        ({"kind": "tree", "chain": NF4}, {}, "tree"),
        (SKIPS, {"kind": "adaptive_threshold"}, "adaptive_threshold"),
        (NGRAM, {"kind": "thompson", "costs": COSTS}, "thompson"),
        (NGRAM, {"kind": "accepted_length", "costs": COSTS}, "accepted_length"),
        (NGRAM, {"kind": "fixed", "costs": COSTS}, "fallback"),
        (NGRAM, {"kind": "fixed", "costs": COSTS, "fallback": False}, "ngram"),
    ],
)
def test_every_plan_has_one_family(source: dict[str, Any], controller: dict[str, Any], family: str) -> None:
    found = family_of(plan_of(source, **controller))
    assert found is not None
    assert found.name == family


def test_plain_decoding_has_none() -> None:
    assert family_of(PLAIN) is None


def test_the_table_knows_every_kind_of_source() -> None:
    """A source that is registered without an entry would never be searched or compared."""
    assert {family.name for family in TABLE} >= SOURCE_KINDS
    assert {family.name for family in TABLE} >= known_kinds() - {"fixed", "confidence"}


def test_every_family_can_be_asked_for() -> None:
    assert {family.option for family in TABLE} == set(get_args(Family))
    assert len({family.title for family in TABLE}) == len(TABLE)


@pytest.mark.parametrize("family", [family for family in TABLE if family.plans is not None], ids=lambda f: f.name)
def test_plans_of_a_family_are_its_own_and_not_replayed(family: Any) -> None:
    world = some_world(num_experts=4)
    if family.absent(world) is not None:
        pytest.skip("this version has none")
    plans = family.plans(world)
    assert plans
    assert all(family_of(plan) is family for plan in plans)
    assert not any(is_replayed(plan) for plan in plans)
    assert len(set(plans)) == len(plans)
    assert all(plan.controller.max_draft_tokens <= world.space.max_draft_tokens for plan in plans)


def test_learning_controllers_know_what_rounds_cost() -> None:
    by_name = {family.name: family for family in TABLE}
    for name in ("accepted_length", "thompson", "fallback"):
        for plan in by_name[name].plans(some_world()):
            costs = plan.controller.costs
            assert costs is not None
            assert len(costs.verify_cost) == 8
            assert costs.draft_cost >= 0.0
    assert all(by_name[name].plans(some_world(costs_of=lambda plan: None)) == [] for name in ("thompson", "fallback"))


def test_swift_begins_with_the_predicted_set_and_clasp_with_its_size() -> None:
    by_name = {family.name: family for family in TABLE}
    swift = by_name["swift"].plans(some_world())
    assert swift[0].source.skip.attention == {3, 4, 5}
    assert swift[1].source.skip.attention == set(range(1, 11, 2))
    assert by_name["clasp"].plans(some_world())[0].source.num_skipped == 2


def test_reduced_heads_join_the_best_passes_and_compositions() -> None:
    family = next(family for family in TABLE if family.name == "reduced_head")
    assert family.plans is not None
    plans = family.plans(some_world())
    kinds = [plan.source.kind for plan in plans if plan.source is not None]
    assert set(kinds) == {"layer_skip", "quantized", "ngram_first"}
    sizes = [getattr(source, "vocab_size", None) for plan in plans for source in sources_in(plan)]
    assert set(filter(None, sizes)) == set(vocab_sizes(1000)) == {64, 128, 256}


def test_only_what_replays_exactly_is_replayed() -> None:
    assert all(is_replayed(plan_of(source)) for source in (EXIT, SKIPS, NF4, NGRAM, SUFFIX, FIRST))
    assert is_replayed(plan_of({**FIRST, "ngram": SUFFIX}))
    assert not is_replayed(plan_of({**SUFFIX, "corpus": True})), "a table may hold the very trace"
    assert not is_replayed(plan_of(SWIFT))
    assert not is_replayed(plan_of({**FIRST, "then": SWIFT}))
    assert not is_replayed(plan_of({**FIRST, "then": {**SKIPS, "vocab_size": 10}}))
    assert not is_replayed(plan_of(NGRAM, kind="fixed", costs=COSTS))


def test_parts_are_found_whatever_wraps_them() -> None:
    plan = plan_of({"kind": "tree", "chain": {**FIRST, "then": {**EXIT, "head": "linear", "vocab_size": 10}}})
    assert [source.kind for source in sources_in(plan)] == ["tree", "ngram_first", "ngram", "early_exit"]
    assert array_names(plan) == {"exit_head.9", "vocabulary_ranks"}
    assert array_names(PLAIN) == frozenset()


def test_a_model_of_two_layers_has_no_plan_that_leaves_both_out() -> None:
    """The published shares would leave out more layers than so small a model has."""
    small = some_world(space=some_space(2), predictions=[])
    assert small.plan({"kind": "clasp", "num_skipped": 1}) is not None
    assert small.plan({"kind": "clasp", "num_skipped": 2}) is None
    assert all(family.plans is None or isinstance(family.plans(small), list) for family in TABLE)
