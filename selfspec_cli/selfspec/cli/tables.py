"""What a calibration found, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from selfspec.cli.sheet import Column, Sheet, milliseconds, number
from selfspec.views.calibration_words import byte_words, divergence_words, num_drafting
from selfspec_runtime.memory import choose_step, parse_memory

if TYPE_CHECKING:
    from selfspec_runtime.calibration import Calibration, Interval, KindResult, MemoryStep

MAX_TIMED = 10
"""Timed plans that are shown; the file holds all of them."""

_SPEED = number(1)
_RATIO = number(2, unit="x")

RESULT_COLUMNS = (
    Column(key="kind", title="prompts", is_text=True),
    Column(key="num_prompts", title="n"),
    Column(key="plain_tokens_per_s", title="plain tok/s", write=_SPEED),
    Column(key="plan_tokens_per_s", title="plan tok/s", write=_SPEED),
    Column(key="speedup", title="speedup", write=lambda value: interval_text(value)),
    Column(key="speedup_over_stock", title="over transformers", write=_RATIO),
    Column(key="tokens_per_round", title="tokens/round", write=number(2)),
    Column(key="time", title="draft/verify/host", write=lambda value: split_text(value)),
    Column(key="time_to_first_token_s", title="first token", write=milliseconds),
)
SAMPLING_COLUMN = Column(key="sampling", title="sampling", is_text=True)
STEP_COLUMNS = (
    Column(key="chosen", title="", write=lambda value: "→" if value else "", is_text=True),
    Column(key="extra_bytes", title="extra memory", write=byte_words),
    Column(key="extra_share", title="of weights", write=lambda value: f"{value:.1%}"),
    Column(key="plan", title="plan", is_text=True),
    Column(key="speedup", title="speedup", write=lambda value: interval_text(value)),
    Column(key="enabled", title="enabled", write=lambda value: "yes" if value else "no"),
)
TIMED_COLUMNS = (
    Column(key="plan", title="timed plan", is_text=True),
    Column(key="predicted_speedup", title="predicted", write=_RATIO),
    Column(key="measured_speedup", title="measured", write=_RATIO),
    Column(key="num_prompts", title="n"),
    Column(key="num_runs", title="runs"),
)


def calibration_sheets(calibration: Calibration) -> tuple[Sheet, ...]:
    """The verdict, the steps of extra memory, and predicted beside measured speedups."""
    return verdict_sheet(calibration), steps_sheet(calibration), timed_sheet(calibration)


def verdict_sheet(calibration: Calibration) -> Sheet:
    """The chosen plan on held-out prompts, per kind."""
    step = calibration.steps[calibration.chosen]
    samplings = sorted({result.sampling for result in step.results})
    state = "" if step.enabled else " (not enabled)"
    return Sheet(
        name="verdict",
        title=f"{step.plan.describe()}{state} on {calibration.machine.device}",
        columns=RESULT_COLUMNS if len(samplings) < 2 else (RESULT_COLUMNS[0], SAMPLING_COLUMN, *RESULT_COLUMNS[1:]),
        rows=tuple(_result_row(result) for result in step.results),
        notes=(step.reason, _basis(calibration, samplings), *_identity(step, calibration.fingerprint.dtype)),
    )


def steps_sheet(calibration: Calibration) -> Sheet:
    """The best plan for each amount of extra memory."""
    return Sheet(
        name="steps",
        title="The best plan for each amount of extra memory",
        columns=STEP_COLUMNS,
        rows=tuple(_step_row(step, chosen=index == calibration.chosen) for index, step in enumerate(calibration.steps)),
        notes=(next_step_up(calibration),),
    )


def timed_sheet(calibration: Calibration) -> Sheet:
    """Predicted beside measured speedups, on search prompts."""
    evidence = calibration.evidence
    error, num_timed = evidence.median_prediction_error, num_drafting(evidence.timed)
    known = "" if error is None else f" The prediction is off by {error:.0%} in the median."
    searched = f"{evidence.num_predicted} plans were predicted from {evidence.num_trace_tokens} tokens of traces"
    return Sheet(
        name="timed",
        title=f"{num_timed} timed plan{'s' * (num_timed != 1)}, on search prompts, best first",
        columns=TIMED_COLUMNS,
        rows=tuple(
            {**timed.model_dump(mode="json"), "plan": timed.plan.describe()} for timed in evidence.timed[:MAX_TIMED]
        ),
        notes=(f"{searched}, and {num_timed} were timed beside plain decoding.{known}",),
    )


def next_step_up(calibration: Calibration) -> str:
    """What more memory would bring, in a sentence, so that nobody misses a speedup for want of a flag."""
    chosen = calibration.steps[calibration.chosen]
    larger = [step for step in calibration.steps if step.extra_bytes > chosen.extra_bytes]
    if not larger:
        return "Next step up: no plan with more memory was found."
    step = min(larger, key=lambda other: other.extra_bytes)
    flag = f"{_rounded_up(step.extra_share)}%"
    speedup = "" if step.overall is None else f": {interval_text(step.overall.speedup)}"
    cost = (
        f"{step.plan.describe()}, {byte_words(step.extra_bytes)} more ({step.extra_share:.0%} of the weights){speedup}"
    )
    if not step.enabled:
        return f"Next step up: {cost}. It is not worth it: {step.reason}"
    if calibration.steps[choose_step(calibration.steps, parse_memory(flag))] is not step:
        return f"Next step up: {cost}. It is not faster, and no flag chooses it."
    return f"Next step up: {cost}. Use it with --max-extra-memory {flag}."


def interval_text(interval: Interval | dict[str, Any]) -> str:
    """For example ``1.34x [1.29, 1.39]``; without an interval where there are too few prompts for one."""
    parts = interval if isinstance(interval, dict) else interval.model_dump()
    if parts["low"] is None or parts["high"] is None:
        return f"{parts['value']:.2f}x"
    return f"{parts['value']:.2f}x [{parts['low']:.2f}, {parts['high']:.2f}]"


def split_text(split: dict[str, float]) -> str:
    """For example ``20/70/10 %``."""
    return "/".join(f"{split[part]:.0%}".rstrip("%") for part in ("draft", "verify", "host")) + " %"


def _result_row(result: KindResult) -> dict[str, Any]:
    return result.model_dump(mode="json")


def _step_row(step: MemoryStep, *, chosen: bool) -> dict[str, Any]:
    row = step.model_dump(mode="json", include={"name", "extra_bytes", "extra_share", "enabled", "reason"})
    speedup = None if step.overall is None else step.overall.speedup.model_dump()
    return {**row, "chosen": chosen, "plan": step.plan.describe(), "speedup": speedup}


def _basis(calibration: Calibration, samplings: list[str]) -> str:
    data = calibration.data
    sampling = f", {samplings[0]}" if len(samplings) == 1 else ""
    return (
        f"Measured on {data.num_held_out} held-out prompts of {data.file} ({data.num_search} others were searched on), "
        f"up to {calibration.max_new_tokens} new tokens each{sampling}. Baseline: this runtime's own plain decoding of "
        "the same model, interleaved in one process; over transformers: its generate. Reading the prompt is kept "
        "apart, and making text of tokens is in no time."
    )


def _identity(step: MemoryStep, dtype: str) -> tuple[str, ...]:
    row = step.overall
    if row is None or row.sampling != "greedy":
        return ()
    same = f"Tokens are identical to plain decoding on {row.num_identical} of {row.num_prompts} prompts"
    margin = row.largest_divergence_margin
    if margin is None:
        return (f"{same}.",)
    return (f"{same}; where they differ, {divergence_words(margin, dtype)}.",)


def _rounded_up(share: float) -> int:
    return -int(-share * 100 // 1)
