"""What a calibration amounts to, in words that every view shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from selfspec_runtime.calibration import Calibration, Interval, MemoryStep, SamplingRecord, TimedPlan
    from selfspec_runtime.plan import DraftPlan

TIE_MARGINS = {"float32": 1e-5, "float16": 32 * 2**-10, "bfloat16": 32 * 2**-7}
"""Top-two margins up to which a divergence is a tie: in float32 the promised one, which rounding in another order stays
below; in shorter formats one step between numbers of 32 and more, as large as logits commonly are."""


def chosen_step(calibration: Calibration) -> MemoryStep:
    """The chosen step; its plan is in use only if it is enabled."""
    return calibration.steps[calibration.chosen]


def plan_in_use(calibration: Calibration) -> DraftPlan | None:
    """The plan that decodes; None where the model is decoded plainly."""
    step = chosen_step(calibration)
    return step.plan if step.enabled else None


def num_drafting(timed: Iterable[TimedPlan]) -> int:
    """How many plans were timed; plain decoding, which they are timed beside, is none."""
    return sum(not each.plan.is_plain for each in timed)


def divergence_words(margin: float, dtype: str) -> str:
    """How close a call the first difference of two greedy texts was.

    Args:
        margin: The largest top-two margin of the target's logits there.
        dtype: Number format of the model, such as ``bfloat16``.
    """
    said, tie = f"top-two logit margin up to {margin:.2g}", TIE_MARGINS.get(dtype, 0.0)
    if margin <= tie:
        return f"the first difference is a near tie ({said}; up to {tie:.2g} counts as one in {dtype})"
    return f"the first difference is no near tie ({said}; one in {dtype} is at most {tie:.2g})"


def verdict(calibration: Calibration) -> str:
    """The answer in a sentence or two."""
    step = chosen_step(calibration)
    row = step.overall
    if not step.enabled:
        return f"Nothing that was tried makes this model faster here; it is decoded plainly. {step.reason}"
    if row is None:
        return f"{step.plan.describe()} is used. {step.reason}"
    return (
        f"{speedup_words(row.speedup)} as fast as plain decoding with {step.plan.describe()}: "
        f"{row.plan_tokens_per_s:.1f} instead of {row.plain_tokens_per_s:.1f} tokens per second, measured on "
        f"{row.num_prompts} held-out prompts."
    )


def step_words(step: MemoryStep) -> str:
    """A step of extra memory in a line: its name, what it holds, what it brings."""
    row = step.overall
    gain = speedup_words(row.speedup) if step.enabled and row is not None else "no gain"
    return f"{step.name}: {byte_words(step.extra_bytes)} more, {gain}"


def speedup_words(interval: Interval) -> str:
    """A ratio with its interval, for example ``1.25x (1.10 to 1.45)``."""
    if interval.low is None or interval.high is None:
        return f"{interval.value:.2f}x"
    return f"{interval.value:.2f}x ({interval.low:.2f} to {interval.high:.2f})"


def sampling_words(sampling: SamplingRecord) -> str:
    """How tokens were chosen."""
    if sampling.temperature == 0:
        return "greedy"
    filters = {"top-k": sampling.top_k, "top-p": sampling.top_p, "min-p": sampling.min_p}
    named = [f"{name} {value:g}" for name, value in filters.items() if value is not None]
    return ", ".join([f"temperature {sampling.temperature:g}", *named, sampling.mode])


def byte_words(num_bytes: float | None) -> str:
    """A number of bytes, readably."""
    if num_bytes is None:
        return "unknown"
    size = float(num_bytes)
    for unit in ("B", "kB", "MB"):
        if round(size) < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
