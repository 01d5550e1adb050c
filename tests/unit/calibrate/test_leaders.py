from __future__ import annotations

import pytest

from selfspec_calibrate.leaders import PlanMemory, are_near, leaders
from selfspec_calibrate.predicted_study import PredictedStudy
from selfspec_calibrate.prediction import Prediction
from selfspec_runtime.plan import DraftPlan

MEMORY = PlanMemory(weight_bytes=1000, exit_head_bytes=5, quantized_bytes=250, quantized_head_bytes=40)
NGRAM = {"kind": "ngram"}
SUFFIX = {"kind": "suffix"}
NF4 = {"kind": "quantized"}


def exit_at(layer: int, head: str = "own") -> dict[str, object]:
    return {"kind": "early_exit", "exit_layer": layer, "head": head}


def skipping(*mlp: int) -> dict[str, object]:
    return {"kind": "layer_skip", "skip": {"mlp": list(mlp)}}


def first(then: dict[str, object]) -> dict[str, object]:
    return {"kind": "ngram_first", "then": then}


def plan_of(source: dict[str, object]) -> DraftPlan:
    return DraftPlan.model_validate({"source": source})


def study_of(*plans: tuple[dict[str, object], float]) -> PredictedStudy:
    ordered = sorted(plans, key=lambda plan: -plan[1])
    predictions = [Prediction(plan_of(source), speedup, 2.0, 0.5, 1.0, 1.0 / speedup) for source, speedup in ordered]
    return PredictedStudy(tuple(predictions), len(plans), 0, 100)


def picked(study: PredictedStudy, step: str, **numbers: int) -> list[DraftPlan]:
    return [prediction.plan for prediction in leaders(study, MEMORY, **numbers)[step]]


@pytest.mark.parametrize(
    ("source", "extra_bytes", "step"),
    [
        (NGRAM, 0, "zero"),
        (exit_at(3), 0, "zero"),
        (exit_at(3, "linear"), 5, "zero"),
        (first(exit_at(3, "linear")), 5, "zero"),
        (skipping(3), 0, "zero"),
        (NF4, 250, "quantized"),
        ({**NF4, "quantize_head": True}, 290, "quantized"),
        (first(NF4), 250, "quantized"),
    ],
)
def test_memory_of_plans(source: dict[str, object], extra_bytes: int, step: str) -> None:
    assert MEMORY.extra_bytes(plan_of(source)) == extra_bytes
    assert MEMORY.step(plan_of(source)) == step


def test_low_rank_heads_hold_two_factors() -> None:
    memory = PlanMemory(weight_bytes=1000, exit_head_bytes=64, head_row_bytes=4)
    assert memory.extra_bytes(plan_of({**exit_at(3, "linear"), "rank": 2})) == 16
    assert memory.extra_bytes(plan_of(exit_at(3, "linear"))) == 64


def test_linear_heads_beyond_a_hundredth_of_the_weights_are_extra_memory() -> None:
    memory = PlanMemory(weight_bytes=1000, exit_head_bytes=11)
    assert memory.step(plan_of(exit_at(3, "linear"))) == "quantized"


def test_each_step_has_its_own_leaders_best_first() -> None:
    study = study_of((NF4, 1.9), (first(NF4), 2.0), (NGRAM, 1.4), (skipping(3), 1.1), (exit_at(8), 0.9))
    found = leaders(study, MEMORY)
    assert list(found) == ["zero", "quantized"]
    assert [prediction.speedup for prediction in found["zero"]] == [1.4, 1.1, 0.9]
    assert [prediction.speedup for prediction in found["quantized"]] == [2.0, 1.9]


def test_every_family_is_timed_however_slow_it_is_predicted() -> None:
    skips = [(skipping(*range(3 * n, 3 * n + 4)), 2.0 - 0.01 * n) for n in range(8)]
    study = study_of(*skips, (NGRAM, 0.9), (exit_at(4), 0.5))
    plans = picked(study, "zero", num_overall=3)
    assert [plan.source.kind for plan in plans] == ["layer_skip"] * 3 + ["ngram", "early_exit"]


def test_a_near_copy_of_a_better_plan_is_passed_over() -> None:
    study = study_of((exit_at(9), 1.5), (exit_at(10), 1.49), (exit_at(6), 1.2), (exit_at(9, "linear"), 1.1))
    plans = picked(study, "zero", num_overall=3)
    assert [plan.source.describe() for plan in plans] == [
        "exit after layer 9",
        "exit after layer 6",
        "exit after layer 9, linear head",
    ]


def test_no_leader_is_named_twice() -> None:
    study = study_of((NGRAM, 1.4), (skipping(3), 1.1))
    assert len(picked(study, "zero", num_overall=4, per_family=3)) == 2


@pytest.mark.parametrize(
    ("one", "other", "near"),
    [
        (exit_at(5), exit_at(6), True),
        (exit_at(5), exit_at(7), False),
        (exit_at(5), exit_at(5, "linear"), False),
        (skipping(1, 2, 3), skipping(1, 2, 4), True),
        (skipping(1, 2, 3), skipping(1, 4, 5), False),
        (NF4, {**NF4, "skip": {"mlp": [4]}}, True),
        (NF4, {**NF4, "quantize_head": True}, False),
        (NGRAM, {**NGRAM, "max_match": 4}, True),
        (NGRAM, {**NGRAM, "min_match": 2}, False),
        (SUFFIX, {**SUFFIX, "tokens_per_match": 8.0}, True),
        (SUFFIX, {**SUFFIX, "min_match": 2}, False),
        (SUFFIX, {**SUFFIX, "corpus": True}, False),
        (SUFFIX, NGRAM, False),
        (first(NF4), {**first(NF4), "ngram": SUFFIX}, True),
        (first(exit_at(5)), first(exit_at(6)), True),
        (first(exit_at(5)), exit_at(5), False),
        (first(exit_at(5)), first(NF4), False),
        (skipping(3), NF4, False),
    ],
)
def test_nearness(one: dict[str, object], other: dict[str, object], near: bool) -> None:
    sources = plan_of(one).source, plan_of(other).source
    assert are_near(*sources) is near
    assert are_near(*reversed(sources)) is near
