from __future__ import annotations

import math
import re
from statistics import median
from typing import Any

import pytest
from tests.support.calibrations import QUANTIZED, calibration, evidence, kind_result, memory_step
from tests.support.html_checks import assert_harmless, shown_text
from tests.support.traces import HOSTILE

from selfspec.views.calibration_evidence import prediction_points
from selfspec.views.calibration_html import calibration_page
from selfspec.views.calibration_words import byte_words
from selfspec.views.exit_estimate import ExitEstimate
from selfspec.views.search_history import best_so_far, by_step, history_section
from selfspec_calibrate.pipeline import median_error
from selfspec_calibrate.textbook import expected_speedup
from selfspec_runtime.calibration import Calibration, CostTable, Evidence
from selfspec_runtime.plan import PLAIN, DraftPlan


def full_evidence(**changes: Any) -> Evidence:
    cost = CostTable(
        context_lengths=(64, 256),
        pass_s=((0.020, 0.021, 0.022), (0.022, 0.023, 0.024)),
        attention_s=(0.001, 0.0015),
        mlp_s=0.003,
        head_s=0.004,
        host_s=0.001,
    )
    known: dict[str, Any] = {
        "cost": cost,
        "agreement_by_exit": (0.1, 0.3, 0.8),
        "agreement_by_linear_exit": (None, 0.5, 0.75),
        "attention_sensitivity": (0.9, 0.95, None, 0.8),
        "mlp_sensitivity": (0.5, 0.6, 0.7, 0.65),
    }
    return evidence().model_copy(update=known | changes)


@pytest.fixture
def complete() -> Calibration:
    steps = (memory_step(), memory_step(QUANTIZED, name="quantized", extra_bytes=500_000, speedup=0.9, enabled=False))
    return calibration(*steps, evidence=full_evidence())


def test_the_report_is_one_harmless_file(complete: Calibration) -> None:
    html = calibration_page(complete)
    assert html.startswith("<!DOCTYPE html>")
    assert_harmless(html)
    assert "default-src 'none'" in html


def test_the_verdict_comes_first_and_is_true(complete: Calibration) -> None:
    heading = re.search(r"<h1>(.*?)</h1>", calibration_page(complete))
    assert heading is not None
    assert heading[1].startswith("1.25x (1.10 to 1.45) as fast as plain decoding")
    assert "50.0 instead of 40.0 tokens per second" in heading[1]


def test_no_gain_is_said_plainly() -> None:
    text = shown_text(calibration_page(calibration(memory_step(speedup=0.97, enabled=False))))
    assert "Nothing that was tried makes this model faster" in text
    assert "It is not faster on held-out prompts." in text


def test_every_section_is_there(complete: Calibration) -> None:
    headings = re.findall(r"<h2>(.*?)</h2>", calibration_page(complete))
    assert headings == [
        "By kind of prompt",
        "By extra memory",
        "Where the time goes",
        "Agreement by depth",
        "What an early exit would bring",
        "Which sub-layers matter",
        "What was tried, and what was dropped",
        "How the search went",
        "How good the predictions were",
        "What a pass costs",
        "How it was measured",
        "Environment",
    ]


def test_sections_without_evidence_are_left_out() -> None:
    bare = evidence().model_copy(update={"timed": (), "median_prediction_error": None})
    html = calibration_page(calibration(memory_step().model_copy(update={"results": ()}), evidence=bare))
    assert_harmless(html)
    assert "What was tried" not in html
    assert "Agreement by depth" not in html
    assert "nan" not in shown_text(html).lower().split()


def test_both_plans_and_their_numbers_are_listed(complete: Calibration) -> None:
    text = shown_text(calibration_page(complete))
    for each in complete.evidence.timed:
        assert f"{each.plan.describe()}{each.predicted_speedup:.2f}x{each.measured_speedup:.2f}x" in text
    assert "dropped: slower than plain" in text
    assert "in use" in text


def plain_beside() -> Evidence:
    one, other = evidence().timed
    plain = one.model_copy(update={"plan": PLAIN, "predicted_speedup": 1.0, "measured_speedup": 1.0})
    return full_evidence(timed=(one, plain, other))


def test_plain_decoding_is_the_baseline_and_was_not_dropped() -> None:
    text = shown_text(calibration_page(calibration(evidence=plain_beside())))
    assert "plain decoding1.00x1.00x101the baseline" in text
    assert "2 plans, interleaved with plain decoding" in text


def test_nothing_is_in_use_where_the_model_is_decoded_plainly() -> None:
    html = calibration_page(calibration(memory_step(enabled=False), evidence=full_evidence()))
    text = shown_text(html)
    assert "best of the step zero, not enabled" in text
    assert "for each amount of extra memory; none is in use" in text
    assert text.count("none is in use") == text.count("in use")


def test_the_best_plan_of_another_step_was_not_dropped(complete: Calibration) -> None:
    best = complete.evidence.timed[0].model_copy(update={"plan": complete.steps[1].plan})
    known = complete.model_copy(update={"evidence": full_evidence(timed=(*complete.evidence.timed, best))})
    assert "best of the step quantized, not enabled" in shown_text(calibration_page(known))


def test_a_fast_plan_on_few_prompts_was_given_up_and_did_not_lose_to_a_slower_one() -> None:
    text = shown_text(calibration_page(tried((1.2, 9), (1.9, 2))))
    assert "1.90x21given up early" in text
    assert "1.20x91dropped: not best" in text


def test_points_of_predictions_are_those_that_the_median_error_is_of() -> None:
    known = plain_beside()
    whole = known.timed[0]
    three = tuple(whole.model_copy(update={"predicted_speedup": value}) for value in (1.31, 1.4, 2.0))
    known = known.model_copy(update={"timed": (*three, *known.timed[1:])})
    points = prediction_points(known)
    errors = [abs(predicted - measured) / measured for predicted, measured, _ in points]
    assert len(points) == 3, "neither plain decoding nor a plan that was given up"
    assert median(errors) == median_error(known.timed, num_prompts=whole.num_prompts)


@pytest.mark.parametrize(("margin", "words"), [(2e-6, "is a near tie"), (0.5, "is no near tie")])
def test_where_greedy_texts_differ_the_margin_is_judged(margin: float, words: str) -> None:
    row = kind_result().model_copy(update={"largest_divergence_margin": margin, "num_identical": 9})
    text = shown_text(calibration_page(calibration(memory_step().model_copy(update={"results": (row,)}))))
    assert f"Where greedy texts differ, the first difference {words}" in text


def test_nothing_is_said_of_ties_where_tokens_are_drawn() -> None:
    row = kind_result().model_copy(update={"sampling": "temperature 0.7", "num_identical": 2})
    text = shown_text(calibration_page(calibration(memory_step().model_copy(update={"results": (row,)}))))
    assert "texts differ" not in text


@pytest.mark.parametrize(
    ("num_bytes", "words"),
    [
        (None, "unknown"),
        (999, "999 B"),
        (999_600, "1 MB"),
        (270_000, "270 kB"),
        (2.5e13, "25000.0 GB"),
        (8_060_000_000, "8.1 GB"),
    ],
)
def test_a_size_has_one_spelling(num_bytes: float | None, words: str) -> None:
    assert byte_words(num_bytes) == words


def tried(*speedups: tuple[float, int], first: int = 1) -> Calibration:
    """Timed exits: speedup and prompts of each, in the order of their trials; listed best first, as files do."""
    one, _ = evidence().timed
    plans = [
        one.model_copy(
            update={
                "plan": DraftPlan.model_validate({"source": {"kind": "early_exit", "exit_layer": number}}),
                "measured_speedup": speedup,
                "num_prompts": prompts,
                "order": number,
            }
        )
        for number, (speedup, prompts) in enumerate(speedups, start=first)
    ]
    best_first = tuple(sorted(plans, key=lambda each: -each.measured_speedup))
    return calibration(evidence=full_evidence(timed=best_first))


def test_the_history_is_in_the_order_of_trials() -> None:
    history = by_step(tried((0.8, 9), (1.3, 2), (1.1, 9), (1.05, 9)))[None]
    assert [each.measured_speedup for each in history] == [0.8, 1.3, 1.1, 1.05]
    assert best_so_far(history) == [1.0, 1.0, 1.1, 1.1], "a plan that was given up is no best"


def test_the_history_draws_a_dot_for_each_plan_and_says_which_was_best() -> None:
    html = str(history_section(tried((0.8, 9), (1.3, 2), (1.1, 9))))
    assert len(re.findall(r"<circle [^>]*ss-a", html)) == 2
    assert len(re.findall(r"<circle [^>]*ss-hollow", html)) == 1
    assert "the best, 1.10x, was number 3" in shown_text(html)


def test_files_that_do_not_know_the_order_have_no_history() -> None:
    known = tried((0.8, 9), (1.3, 9))
    old = tuple(each.model_copy(update={"order": None}) for each in known.evidence.timed)
    assert not history_section(calibration(evidence=full_evidence(timed=old)))


def both_steps(**changes: object) -> Calibration:
    zero, more = (tried(*speedups).evidence.timed for speedups in (((0.8, 9), (1.1, 9)), ((1.7, 9), (1.5, 9))))
    steps = [("zero", zero), ("quantized", more)]
    timed = [each.model_copy(update={"step": step, **changes}) for step, found in steps for each in found]
    return calibration(evidence=full_evidence(timed=tuple(timed)))


def test_each_memory_step_has_its_own_history() -> None:
    """Its plans were compared with each other, by a study that knew nothing of the other step's."""
    found = by_step(both_steps())
    assert {step: [each.measured_speedup for each in plans] for step, plans in found.items()} == {
        "zero": [0.8, 1.1],
        "quantized": [1.7, 1.5],
    }
    shown = shown_text(str(history_section(both_steps())))
    assert "2 plans of the memory step zero in the order they were tried; the best, 1.10x, was number 2" in shown
    assert "2 plans of the memory step quantized in the order they were tried; the best, 1.70x, was number 1" in shown


def test_a_place_that_is_taken_twice_is_no_order() -> None:
    assert not history_section(both_steps(step=None))


def test_a_row_without_interval_or_drafts_shows() -> None:
    row = kind_result(low=None).model_copy(
        update={"acceptance_rate": None, "stock_tokens_per_s": None, "speedup_over_stock": None}
    )
    step = memory_step().model_copy(update={"results": (row,)})
    html = calibration_page(calibration(step))
    assert_harmless(html)
    assert "<td>1.25x</td>" in html


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_do_nothing(name: str) -> None:
    base = calibration(evidence=full_evidence())
    row = kind_result(name)
    nasty = base.model_copy(
        update={
            "machine": base.machine.model_copy(update={"device": name, "cpu": name}),
            "data": base.data.model_copy(update={"file": name, "kinds": {name: 1}, "skipped": {name: 2}}),
            "created": name,
            "steps": (memory_step().model_copy(update={"reason": name, "results": (row,)}),),
        }
    )
    assert_harmless(calibration_page(nasty))


def test_the_estimate_is_the_textbooks(complete: Calibration) -> None:
    estimate = ExitEstimate(complete)
    for exit_layer, row in zip(estimate.exits, estimate.table, strict=True):
        for count, shown in enumerate(row, start=1):
            round_s = estimate.round_s(exit_layer, count) / estimate.plain_s
            expected = expected_speedup(estimate.agreement(exit_layer), 0.0, count, round_s)
            assert shown == pytest.approx(expected)
    assert estimate.agreement(2) == 0.5
    assert estimate.agreement(3) == 0.8


def test_the_estimates_best_is_named_in_words(complete: Calibration) -> None:
    table = ExitEstimate(complete).table
    best = max(value for row in table for value in row)
    assert f"highest {best:.2f} with an exit after layer" in shown_text(calibration_page(complete))
    assert math.isfinite(best)
