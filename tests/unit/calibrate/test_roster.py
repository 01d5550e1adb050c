from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.support.planted_world import EXIT, NGRAM, SKIPS, plan_of, some_world

from selfspec_calibrate.draft_families import TABLE, family_of, in_turns
from selfspec_calibrate.roster import NOT_ASKED, NOT_PREDICTED, NOT_WORTH_IT, roster_of
from selfspec_calibrate.settings import FAMILIES
from selfspec_runtime.plan import DraftPlan

if TYPE_CHECKING:
    from selfspec_calibrate.family_world import FamilyWorld

TITLES = {family.name: family.title for family in TABLE}


def names_of(plans: tuple[object, ...]) -> set[str]:
    return {family_of(plan).name for plan in plans}  # type: ignore[arg-type, union-attr]


def nothing_predicted() -> FamilyWorld:
    return replace(some_world(), predictions=[])


def test_a_calibration_times_one_plan_of_each_family_that_has_a_chance() -> None:
    roster = roster_of(some_world(), families=FAMILIES)
    names = [family_of(plan).name for plan in roster.plans]  # type: ignore[union-attr]
    assert len(set(names)) == len(names)
    assert {"swift", "clasp", "conf_layers", "tree", "thompson", "accepted_length", "fallback"} <= set(names)
    assert not {"ngram", "layer_skip"} & set(names)


def test_a_comparison_times_all_of_them() -> None:
    few, all_of_them = (roster_of(some_world(), families=FAMILIES, everything=wide) for wide in (False, True))
    assert set(few.plans) < set(all_of_them.plans)


def test_what_learns_on_hopeless_layers_is_left_to_comparisons() -> None:
    world = some_world((NGRAM, 1.3), (SKIPS, 0.6), (EXIT, 0.5))
    narrow = roster_of(world, families=FAMILIES)
    assert not {"swift", "clasp", "conf_layers", "adaptive_threshold"} & names_of(narrow.plans)
    assert narrow.left_out[TITLES["swift"]] == NOT_WORTH_IT
    wide = roster_of(world, families=FAMILIES, everything=True)
    assert {"swift", "clasp", "conf_layers"} <= names_of(wide.plans)


def test_every_family_without_a_plan_says_why() -> None:
    roster = roster_of(some_world((NGRAM, 1.3)), families=FAMILIES, everything=True)
    present = {TITLES[name] for name in names_of(roster.plans)} | {TITLES["ngram"]}
    assert set(roster.left_out) == set(TITLES.values()) - present
    assert roster.left_out[TITLES["quantized"]] == NOT_PREDICTED
    assert roster.left_out[TITLES["fewer_experts"]] == "the model has no routed experts"


def test_what_a_model_lacks_is_said() -> None:
    world = some_world((NGRAM, 1.3), can_quantize=False, array_names=frozenset())
    left_out = roster_of(world, families=FAMILIES, everything=True).left_out
    assert left_out[TITLES["quantized"]] == "no NF4 copy of this model can be made on this device"
    assert left_out[TITLES["reduced_head"]] == "the vocabulary's tokens were not ranked"


def test_only_families_that_were_asked_for_are_timed() -> None:
    roster = roster_of(some_world(), families=("ngram", "swift"), everything=True)
    assert names_of(roster.plans) == {"swift"}
    assert roster.left_out[TITLES["thompson"]] == NOT_ASKED
    assert TITLES["ngram"] not in roster.left_out


def test_experts_are_left_out_one_by_one_and_by_half() -> None:
    roster = roster_of(some_world(num_experts=4), families=("fewer_experts",), everything=True)
    assert {plan.source.num_experts for plan in roster.plans} == {3, 2}
    none = roster_of(some_world(num_experts=1), families=("fewer_experts",), everything=True)
    assert "one expert only" in none.left_out[TITLES["fewer_experts"]]


def test_a_plan_that_cannot_be_run_is_left_out_with_its_reason() -> None:
    def refusal(plan: DraftPlan) -> str | None:
        return "no such thing" if plan.source is not None and plan.source.kind == "swift" else None

    roster = roster_of(some_world(), families=FAMILIES, everything=True, refusal=refusal)
    assert "swift" not in names_of(roster.plans)
    assert roster.left_out[TITLES["swift"]] == "no such thing"


def test_families_take_turns() -> None:
    first, second = plan_of(NGRAM), plan_of(NGRAM, kind="fixed", num_draft_tokens=7)
    assert in_turns([first, second, plan_of(SKIPS)]) == [first, plan_of(SKIPS), second]


def test_what_learns_has_a_chance_where_no_drafts_by_layers_were_predicted() -> None:
    for world in (some_world((NGRAM, 1.3)), nothing_predicted()):
        roster = roster_of(world, families=("ngram", "swift", "clasp", "conf_layers"))
        assert names_of(roster.plans) == {"swift", "clasp", "conf_layers"}


def test_families_that_build_on_others_are_left_out_alone() -> None:
    builders = ("adaptive_threshold", "saguaro", "thompson", "accepted_length", "fallback", "tree", "reduced_head")
    roster = roster_of(nothing_predicted(), families=builders)
    assert roster.plans == ()
    assert len(roster.unmet(builders)) == len(builders)


def test_a_user_who_named_a_family_is_told_why_it_is_missing() -> None:
    named = ("ngram", "fewer_experts", "quantized", "early_exit")
    roster = roster_of(some_world((NGRAM, 1.3), (EXIT, 1.1), can_quantize=False), families=named)
    assert roster.unmet(named) == (
        "fewer_experts is left out: the model has no routed experts.",
        "quantized is left out: no NF4 copy of this model can be made on this device.",
    )


def test_a_user_who_named_none_is_told_nothing() -> None:
    assert roster_of(some_world((NGRAM, 1.3)), families=FAMILIES).unmet(FAMILIES) == ()
