"""The plan as data: what it says, how wide it drafts, and what is refused."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from tests.support.plans import CONTROLLERS, SOURCES, plan_of

from selfspec_runtime.errors import PlanError
from selfspec_runtime.plan import PLAIN, DraftPlan


@pytest.mark.parametrize("controller", CONTROLLERS)
@pytest.mark.parametrize("source", SOURCES)
def test_every_combination_survives_a_file_and_fits_four_layers(source: str, controller: str) -> None:
    plan = plan_of(source, controller)
    assert DraftPlan.model_validate_json(plan.model_dump_json()) == plan
    assert not plan.is_plain
    plan.validate_for(4)


def test_plans_are_told_apart_by_their_description() -> None:
    plans = [plan_of(source, controller) for source in SOURCES for controller in CONTROLLERS]
    assert len({plan.describe() for plan in [*plans, PLAIN]}) == len(plans) + 1


@pytest.mark.parametrize(
    ("source", "description"),
    [
        ("early_exit", "exit after layer 2, 4 drafts"),
        ("linear_head", "exit after layer 1, linear head, 4 drafts"),
        ("layer_skip", "skip A1,3 M3, 4 drafts"),
        ("quantized", "NF4 copy of layers and head, skip A3, 4 drafts"),
        ("ngram_first", "n-gram 1-3, else exit after layer 3, 4 drafts"),
    ],
)
def test_a_description_names_all_parts(source: str, description: str) -> None:
    assert plan_of(source).describe() == description


def test_a_plan_without_a_source_is_plain_decoding() -> None:
    assert PLAIN.is_plain
    assert PLAIN.max_draft_tokens == 0
    assert PLAIN.describe() == "plain decoding"
    assert DraftPlan.model_validate_json(PLAIN.model_dump_json()) == PLAIN
    PLAIN.validate_for(1)


@pytest.mark.parametrize(
    ("source", "widest"),
    [
        ({"kind": "ngram"}, 4),
        ({"kind": "ngram", "num_draft_tokens": 9}, 9),
        ({**SOURCES["ngram_first"], "ngram": {"num_draft_tokens": 9}}, 9),
        ({**SOURCES["ngram_first"], "ngram": {"num_draft_tokens": 2}}, 4),
        (SOURCES["early_exit"], 4),
    ],
)
def test_the_widest_draft_counts_a_lookups_own_limit(source: dict[str, object], widest: int) -> None:
    assert DraftPlan.model_validate({"source": source}).max_draft_tokens == widest


def test_a_plan_does_not_change_and_can_be_a_key() -> None:
    plan = plan_of("layer_skip")
    with pytest.raises(ValidationError, match="frozen"):
        plan.source = None  # type: ignore[misc]
    assert {plan: 1}[plan_of("layer_skip")] == 1


@pytest.mark.parametrize(
    "text",
    [
        '{"source": {"kind": "medusa"}}',
        '{"source": {"exit_layer": 2}}',
        '{"controller": {"kind": "oracle"}}',
        '{"drafts": 3}',
        '{"source": []}',
        "[]",
        "{",
    ],
)
def test_a_file_that_says_something_else_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        DraftPlan.model_validate_json(text)


def test_the_refusal_of_an_exit_names_what_exists() -> None:
    with pytest.raises(PlanError, match=r"Exit layer 2 does not exist: the model has 2 layers.*between 1 and 1"):
        plan_of("early_exit").validate_for(2)
