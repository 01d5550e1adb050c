"""The evidence of a calibration in pictures and tables, each with the sentence that says what to see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from selfspec.views.calibration_words import plan_in_use
from selfspec.views.charts import curves, heat_map, scatter
from selfspec.views.elements import figure, paragraph, percent, scrolling, section, table
from selfspec.views.exit_estimate import FORMULA, MAX_DRAFT_TOKENS, ExitEstimate
from selfspec.views.style import MAX_COLUMNS

if TYPE_CHECKING:
    from selfspec_runtime.calibration import Calibration, Evidence, TimedPlan

MAX_TIMED = 40


def agreement_section(calibration: Calibration) -> Markup:
    """Agreement of the exits, as curves; empty where none was measured."""
    evidence = calibration.evidence
    raw, linear = evidence.agreement_by_exit, evidence.agreement_by_linear_exit
    if not raw:
        return Markup("")
    best = max(range(len(raw)), key=lambda index: raw[index])
    described = f"Agreement by exit layer, highest {percent(raw[best])} after layer {best + 1}."
    fitted = any(value is not None for value in linear)
    caption = "Share of tokens that an exit after each layer gets right. Solid: the model's own head." + (
        " Dashed: through a fitted linear map." if fitted else ""
    )
    picture = curves(described, (raw, linear) if fitted else (raw,), x_title="Layers run")
    return section("Agreement by depth", figure(picture, caption))


def estimate_section(calibration: Calibration) -> Markup:
    """Estimated speedup by exit and number of draft tokens."""
    estimate = ExitEstimate(calibration)
    if not estimate.exits:
        return Markup("")
    rows = [(f"layer {exit_layer}", row) for exit_layer, row in zip(estimate.exits, estimate.table, strict=True)]
    counts = range(1, MAX_DRAFT_TOKENS + 1)
    best = max(((e, n) for e in estimate.exits for n in counts), key=lambda pair: estimate.speedup(*pair))
    described = (
        f"Estimated speedup by exit layer and number of draft tokens, highest {estimate.speedup(*best):.2f} with an "
        f"exit after layer {best[0]} and {best[1]} draft token{'s' if best[1] > 1 else ''}."
    )
    picture = heat_map(
        described, rows, [str(count) for count in counts], shown=lambda value: f"{value:.2f}", bounds=(0.5, 1.5)
    )
    caption = f"Exit layer by number of draft tokens. {described} An estimate, not a measurement: {FORMULA}"
    return section("What an early exit would bring", figure(scrolling(picture, label="Estimates"), caption))


def sensitivity_section(calibration: Calibration) -> Markup:
    """Agreement without each sub-layer."""
    evidence = calibration.evidence
    rows = [("attention", evidence.attention_sensitivity), ("MLP", evidence.mlp_sensitivity)]
    rows = [(title, values) for title, values in rows if any(value is not None for value in values)]
    if not rows:
        return Markup("")
    known = [value for _, values in rows for value in values if value is not None]
    picture = heat_map(
        f"Agreement without one sub-layer, from {percent(min(known))} to {percent(max(known))}.",
        rows,
        [str(number + 1) for number in range(max(len(values) for _, values in rows))],
        shown=lambda value: f"{100 * value:.0f}",
        bounds=(min(known), max(known)),
        cell=(25, 22),
    )
    caption = "Per cent of tokens that stay the same when this one sub-layer is left out, by layer."
    return section("Which sub-layers matter", figure(scrolling(picture, label="Sensitivity"), caption))


def timed_section(calibration: Calibration) -> Markup:
    """The timed plans, those that were dropped included."""
    timed = calibration.evidence.timed
    if not timed:
        return Markup("")
    in_use = plan_in_use(calibration)
    shown = timed[:MAX_TIMED]
    head = ("Plan", "Predicted", "Measured", "Prompts", "Runs", "Outcome")
    rows = [_timed_row(each, calibration) for each in shown]
    place = next((number for number, each in enumerate(shown) if each.plan == in_use), None)
    caption = "Plans that were decoded and timed on search prompts, best first"
    cut = f"The best {len(shown)} of {len(timed)}." if len(shown) < len(timed) else ""
    return section(
        "What was tried, and what was dropped",
        table(caption, head, rows, numeric=frozenset({1, 2, 3, 4}), wrapped=frozenset({0}), chosen=place),
        paragraph(cut, muted=True) if cut else Markup(""),
    )


def _timed_row(each: TimedPlan, calibration: Calibration) -> tuple[str, ...]:
    predicted = "–" if each.predicted_speedup is None else f"{each.predicted_speedup:.2f}x"
    measured, outcome = f"{each.measured_speedup:.2f}x", _outcome(each, calibration)
    return each.plan.describe(), predicted, measured, str(each.num_prompts), str(each.num_runs), outcome


def _outcome(each: TimedPlan, calibration: Calibration) -> str:
    """What became of a timed plan."""
    if each.plan == plan_in_use(calibration):
        return "in use"
    if each.plan.is_plain:
        return "the baseline"
    step = next((step for step in calibration.steps if step.plan == each.plan), None)
    if step is not None:
        return f"best of the step {step.name}" + ("" if step.enabled else ", not enabled: see there")
    if each.measured_speedup < 1:
        return "dropped: slower than plain"
    return "dropped: not best" if each.num_prompts == _num_whole(calibration.evidence) else "given up early"


def prediction_section(calibration: Calibration) -> Markup:
    """Predicted against measured speedups."""
    points = prediction_points(calibration.evidence)
    if not points:
        return Markup("")
    error = calibration.evidence.median_prediction_error
    typical = f" Half of them lie within {percent(error)} of the measurement." if error is not None else ""
    plans = f"{len(points)} plan{'s' * (len(points) != 1)} that went through all prompts"
    described = f"Predicted against measured speedup of {plans}.{typical}"
    picture = scatter(described, points, x_title="Predicted speedup", y_title="Measured speedup")
    return section("How good the predictions were", figure(picture, f"{described} On the dashed line both are equal."))


def prediction_points(evidence: Evidence) -> list[tuple[float, float, str]]:
    """Predicted and measured speedup and name of the plans that the median prediction error is of.

    Plain decoding needs no prediction, and a plan that was given up was not measured on what the prediction is for.
    """
    whole = _num_whole(evidence)
    return [
        (each.predicted_speedup, each.measured_speedup, each.plan.describe())
        for each in evidence.timed
        if each.predicted_speedup is not None and not each.plan.is_plain and each.num_prompts == whole
    ]


def _num_whole(evidence: Evidence) -> int:
    """Prompts of a plan that was not given up."""
    return max((each.num_prompts for each in evidence.timed), default=0)


def costs_section(calibration: Calibration) -> Markup:
    """What passes cost on the machine."""
    cost = calibration.evidence.cost
    rows_measured = max((len(row) for row in cost.pass_s), default=0)
    head = ("Context", *(f"{n} row{'s' if n > 1 else ''}" for n in range(1, rows_measured + 1)))
    rows = [
        (f"{length:,}", *(f"{1000 * s:.1f}" for s in row), *[""] * (rows_measured - len(row)))
        for length, row in zip(cost.context_lengths, cost.pass_s, strict=False)
    ]
    copied_s = cost.quantized_pass_s
    quantized = "" if copied_s is None else f" A one-row pass of the NF4 copy takes {1000 * copied_s:.1f} ms."
    parts = (
        f"Final norm and head take {1000 * cost.head_s:.1f} ms of a one-row pass, the work of a round outside of "
        f"passes {1000 * cost.host_s:.1f} ms.{quantized}"
    )
    return section(
        "What a pass costs",
        table(
            "Milliseconds of a full pass, by context length and rows", head, rows, numeric=frozenset(range(MAX_COLUMNS))
        ),
        paragraph(parts, muted=True),
    )
