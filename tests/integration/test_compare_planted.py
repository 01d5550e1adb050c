"""A comparison end to end on a model whose right answer is known; speeds are not looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support import planted_folders

from selfspec_calibrate.compare import compare
from selfspec_calibrate.comparison import Comparison
from selfspec_calibrate.draft_families import TABLE
from selfspec_calibrate.events import Event, PhaseStarted
from selfspec_calibrate.settings import CalibrationSettings
from selfspec_runtime.model_spec import ModelSpec

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

ASKED = ("early_exit", "ngram", "clasp", "fewer_experts", "fallback")


def compared(folder: Path, events: list[Event] | None = None) -> Comparison:
    settings = CalibrationSettings(
        model=ModelSpec(model=str(folder), dtype="float32"),
        prompts=folder / "prompts.jsonl",
        output=folder / "compare.json",
        families=ASKED,
        max_new_tokens=16,
        limit=6,
        budget_s=240.0,
        max_trials=8,
    )
    return compare(settings, (events if events is not None else []).append)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = planted_folders.planted_exit(**planted_folders.SMALL)
    return planted_folders.save(model, tmp_path_factory.mktemp("compared"))


@pytest.fixture(scope="module")
def events() -> list[Event]:
    return []


@pytest.fixture(scope="module")
def comparison(folder: Path, events: list[Event]) -> Comparison:
    return compared(folder, events)


def test_every_family_has_a_result_or_a_reason(comparison: Comparison) -> None:
    assert {each.family for each in comparison.families} == {family.name for family in TABLE}
    assert all((each.best is None) == (each.left_out is not None) for each in comparison.families)
    reasons = {each.family: each.left_out for each in comparison.families}
    assert reasons["fewer_experts"] == "the model has no routed experts"
    assert reasons["quantized"] == "it was not asked for"


def test_the_planted_exit_is_measured_with_full_acceptance(comparison: Comparison) -> None:
    exits = next(each.best for each in comparison.families if each.family == "early_exit")
    assert exits is not None
    assert exits.plan.source.exit_layer >= planted_folders.EXIT_LAYER  # type: ignore[union-attr]
    assert exits.overall is not None
    assert exits.overall.acceptance_rate == 1.0
    assert exits.overall.num_identical == exits.overall.num_prompts
    assert exits.draft_cost is not None
    assert exits.extra_bytes == 0


def test_it_is_known_how_many_prompts_plans_were_timed_on(comparison: Comparison) -> None:
    assert comparison.num_timed is not None
    assert 1 <= comparison.num_timed <= comparison.data.num_search == len(comparison.data.search_ids)


def test_what_learns_is_timed_beside_what_is_predicted(comparison: Comparison) -> None:
    measured = {each.family for each in comparison.families if each.best is not None}
    assert {"early_exit", "ngram", "clasp"} <= measured
    assert all(each.search_s > 0 for each in comparison.families if each.best is not None)


def test_calibration_s_own_choice_is_in_the_same_run(comparison: Comparison) -> None:
    chosen = comparison.calibrated[0]
    assert chosen.step == "zero"
    assert chosen.measured.overall is not None
    rival = next(each for each in comparison.families if each.family == chosen.fastest_family)
    assert rival.best is not None
    assert (chosen.against_fastest is None) == (rival.best.plan == chosen.measured.plan)


def test_the_file_holds_what_was_returned_and_a_rerun_measures_nothing_again(
    comparison: Comparison, folder: Path, events: list[Event]
) -> None:
    read = Comparison.model_validate_json((folder / "compare.json").read_bytes())
    assert read == comparison
    assert [event.name for event in events if isinstance(event, PhaseStarted)][-1] == "held-out"
    again = compared(folder)
    assert again.families == comparison.families
    assert again.calibrated == comparison.calibrated
