"""Engines that are ready to be measured: made and warmed up, or the reason why not.

One plan that cannot be made, or for which memory runs out while it warms up, must not end what is measured of others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from selfspec_calibrate.interleave import OUT_OF_MEMORY, as_selfspec_error
from selfspec_calibrate.measurement import shortened, warm_up
from selfspec_runtime.errors import SelfspecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from selfspec_calibrate.measurement import Arm, MeasuredPrompt, PlanEngine
    from selfspec_runtime.generation import GenerationSettings


def ready_engine(
    make: Callable[[], PlanEngine], prompt: MeasuredPrompt, settings: GenerationSettings
) -> PlanEngine | SelfspecError:
    """Makes an engine and warms it up.

    Args:
        make: Makes it.
        prompt: Any prompt.
        settings: As in the measurement.

    Returns:
        The engine, or why there is none. Nothing holds on to an engine that did not get so far.
    """
    try:
        engine = make()
        warm_up(engine, prompt, settings)
    except (SelfspecError, *OUT_OF_MEMORY) as error:
        return as_selfspec_error(error).with_traceback(None)
    return engine


def not_ready(arm: Arm, prompt: MeasuredPrompt, settings: GenerationSettings) -> SelfspecError | None:
    """Warms up an arm that may be no engine of ours; returns why that failed, or None.

    Args:
        arm: What is going to be measured.
        prompt: Any prompt.
        settings: As in the measurement.
    """
    try:
        arm.measure(prompt, shortened(settings))
    except (SelfspecError, *OUT_OF_MEMORY) as error:
        return as_selfspec_error(error).with_traceback(None)
    return None
