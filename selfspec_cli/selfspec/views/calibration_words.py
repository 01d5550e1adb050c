"""What a calibration amounts to, in words that every view shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from selfspec_runtime.calibration import Calibration, Interval, MemoryStep, SamplingRecord


def chosen_step(calibration: Calibration) -> MemoryStep:
    """The step in use."""
    return calibration.steps[calibration.chosen]


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


def byte_words(num_bytes: int | None) -> str:
    """A number of bytes, readably."""
    if num_bytes is None:
        return "unknown"
    size = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
