"""A calibration in a few lines of plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from selfspec.views.calibration_words import byte_words, chosen_step, speedup_words, verdict
from selfspec.views.token_text import visible_line

if TYPE_CHECKING:
    from selfspec_runtime.calibration import Calibration


def calibration_plain(calibration: Calibration) -> str:
    """The verdict, the held-out rows of the step in use, and the other steps."""
    lines = [verdict(calibration), ""]
    for row in chosen_step(calibration).results:
        speed = speedup_words(row.speedup)
        lines.append(f"{row.kind}: {row.plan_tokens_per_s:.1f} tokens/s, {speed}, {row.tokens_per_round:.2f} per round")
    for step in calibration.steps:
        speed = "not measured" if step.overall is None else speedup_words(step.overall.speedup)
        lines.append(f"step {step.name} (+{byte_words(step.extra_bytes)}): {step.plan.describe()}, {speed}")
    return "\n".join(visible_line(line) for line in lines)
