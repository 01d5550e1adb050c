"""Whether a text is sampled as its plan was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from selfspec_runtime.calibration import Calibration
    from selfspec_runtime.sampling import SamplingSettings


def hotter_than_measured(sampling: SamplingSettings, calibration: Calibration) -> str | None:
    """A notice where tokens are drawn at a higher temperature than any that the plan was measured at."""
    rows = [row.sampling for step in calibration.steps for row in step.results]
    measured = calibration.sampling.temperature
    asked = f"temperature {sampling.temperature:g}"
    if sampling.temperature <= measured or any(row.split(",")[0] == asked for row in rows):
        return None
    known = f"temperature {measured:g}" if measured else "greedy decoding"
    return (
        f"This runs at {asked}, and the plan was measured at {known}: fewer drafts may be accepted. The text stays "
        "right; measure the speed with selfspec calibrate --also-temperature."
    )
