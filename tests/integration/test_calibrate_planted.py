"""Calibration end to end on models whose right answer is known; what needs a clock is in benchmarks/planted.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support import planted_folders

from selfspec_calibrate.events import Event, Noted, PhaseStarted
from selfspec_calibrate.pipeline import calibrate
from selfspec_calibrate.settings import CalibrationSettings
from selfspec_runtime.calibration import CostTable
from selfspec_runtime.calibration_store import load_calibration
from selfspec_runtime.drafts.early_exit import EarlyExitSpec
from selfspec_runtime.engine import Engine
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.loading import load_model
from selfspec_runtime.model_spec import ModelSpec
from selfspec_runtime.target import Target

if TYPE_CHECKING:
    from pathlib import Path

    from selfspec_runtime.calibration import Calibration

pytestmark = pytest.mark.slow

#: Costs of eight layers whose further rows are nearly free, as on most machines, whatever the load of this one.
COSTS = CostTable(
    context_lengths=(16,),
    pass_s=(tuple(1.0 + 0.05 * row for row in range(9)),),
    attention_s=(0.05,),
    mlp_s=0.05,
    head_s=0.2,
    host_s=0.02,
)
PHASES = ["traces", "costs", "predicted", "timed", "verdict"]


def calibrated(folder: Path, events: list[Event] | None = None, **settings: object) -> Calibration:
    wanted = {
        "max_new_tokens": 24,
        "limit": 8,
        "budget_s": 20.0,
        "max_trials": 3,
        "output": folder / "best.json",
        **settings,
    }
    full = CalibrationSettings(
        model=ModelSpec(model=str(folder), dtype="float32"),
        prompts=folder / "prompts.jsonl",
        **wanted,  # type: ignore[arg-type]
    )
    return calibrate(full, (events if events is not None else []).append)


@pytest.fixture(scope="module")
def exit_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return planted_folders.save(planted_folders.planted_exit(**planted_folders.SMALL), tmp_path_factory.mktemp("exit"))


@pytest.fixture(scope="module")
def exit_events() -> list[Event]:
    return []


@pytest.fixture(scope="module")
def exit_calibration(exit_folder: Path, exit_events: list[Event]) -> Calibration:
    return calibrated(exit_folder, exit_events)


def test_the_planted_exit_is_seen_exactly(exit_calibration: Calibration) -> None:
    agreement = exit_calibration.evidence.agreement_by_exit
    planted = planted_folders.EXIT_LAYER
    assert agreement[planted - 1 :] == (1.0,) * (8 - planted)
    assert max(agreement[: planted - 1]) < 0.5


def test_every_timed_exit_from_the_planted_one_on_was_accepted_wholly(
    exit_calibration: Calibration, exit_folder: Path
) -> None:
    exits = [t.plan for t in exit_calibration.evidence.timed if isinstance(t.plan.source, EarlyExitSpec)]
    deep = [plan for plan in exits if plan.source.exit_layer >= planted_folders.EXIT_LAYER]
    assert deep, "the planted exit was not among the timed plans"
    target = Target(load_model(exit_calibration.model).model)
    for plan in (plan for plan in deep if plan.source.head == "own"):
        stats = Engine(target, None, plan).generate([10, 11, 12], GenerationSettings(max_new_tokens=40)).stats
        assert stats.acceptance_rate == 1.0


def test_phases_come_in_order_and_the_user_is_told_what_the_budget_affords(
    exit_calibration: Calibration, exit_events: list[Event]
) -> None:
    assert [event.name for event in exit_events if isinstance(event, PhaseStarted)] == PHASES
    assert any("The budget affords 24 tokens" in event.text for event in exit_events if isinstance(event, Noted))


def test_the_file_holds_what_was_returned(exit_calibration: Calibration, exit_folder: Path) -> None:
    assert load_calibration(exit_folder / "best.json").calibration == exit_calibration
    assert exit_calibration.data.num_search + exit_calibration.data.num_held_out == 8
    assert {step.name for step in exit_calibration.steps} <= {"zero", "quantized"}
    assert all(step.overall is not None or step.plan.is_plain for step in exit_calibration.steps)


def test_a_rerun_goes_on_and_measures_nothing_again(exit_calibration: Calibration, exit_folder: Path) -> None:
    again = calibrated(exit_folder)
    whole = [t for t in exit_calibration.evidence.timed if t.num_prompts == exit_calibration.data.num_search]
    assert set(map(repr, whole)) <= set(map(repr, again.evidence.timed))
    assert again.evidence.cost == exit_calibration.evidence.cost
    assert again.evidence.agreement_by_exit == exit_calibration.evidence.agreement_by_exit


def test_planted_skips_are_seen_exactly(tmp_path: Path) -> None:
    folder = planted_folders.save(planted_folders.planted_skips(**planted_folders.SMALL), tmp_path)
    evidence = calibrated(folder, families=("layer_skip",)).evidence
    found = {
        "attention": tuple(i for i, a in enumerate(evidence.attention_sensitivity) if a == 1.0),
        "mlp": tuple(i for i, a in enumerate(evidence.mlp_sensitivity) if a == 1.0),
    }
    assert found == planted_folders.SKIPPED
    best = max((t for t in evidence.timed if not t.plan.is_plain), key=lambda t: t.predicted_speedup or 0.0)
    assert best.plan.source is not None
    assert set(best.plan.source.skip.attention) <= set(planted_folders.SKIPPED["attention"])
    assert set(best.plan.source.skip.mlp) <= set(planted_folders.SKIPPED["mlp"])


def test_nothing_is_promised_for_a_hopeless_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfspec_calibrate.cost_phase.measure_costs", lambda *_, **__: COSTS)
    folder = planted_folders.save(planted_folders.hopeless_model(**planted_folders.SMALL), tmp_path)
    calibration = calibrated(folder, families=("early_exit", "layer_skip", "ngram"))
    drafted = [t for t in calibration.evidence.timed if not t.plan.is_plain]
    assert drafted
    assert all((t.predicted_speedup or 0.0) < 1.02 for t in drafted)
    result = calibration.steps[0].overall
    assert result is None or result.tokens_per_round <= 1.05


def test_a_calibration_of_a_family_that_the_model_lacks_ends_with_plain_decoding_and_the_reason(
    exit_folder: Path,
) -> None:
    heard: list[Event] = []
    calibration = calibrated(exit_folder, heard, families=("fewer_experts",), output=exit_folder / "lacking.json")
    assert [step.plan.is_plain for step in calibration.steps] == [True]
    assert calibration.evidence.median_prediction_error is None
    assert Noted("fewer_experts is left out: the model has no routed experts.") in heard


def test_all_steps_of_memory_together_time_as_many_plans_as_were_asked_for(exit_calibration: Calibration) -> None:
    drafting = [timed for timed in exit_calibration.evidence.timed if not timed.plan.is_plain]
    assert {timed.step for timed in drafting} == {"zero", "quantized"}
    assert len(drafting) <= 3
