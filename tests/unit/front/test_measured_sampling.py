from __future__ import annotations

from tests.support.calibrations import calibration, kind_result, memory_step

from selfspec.measured_sampling import hotter_than_measured
from selfspec_runtime.sampling import SamplingSettings

GREEDY = SamplingSettings()


def test_running_hotter_than_measured_is_said() -> None:
    notice = hotter_than_measured(SamplingSettings(temperature=0.7), calibration())
    assert notice is not None
    assert "temperature 0.7, and the plan was measured at greedy decoding" in notice


def test_temperatures_that_were_measured_are_not_hotter() -> None:
    also = kind_result().model_copy(update={"sampling": "temperature 0.7, seed 0, rejection"})
    step = memory_step().model_copy(update={"results": (kind_result(), also)})
    measured = calibration(step)
    assert hotter_than_measured(SamplingSettings(temperature=0.7), measured) is None
    assert hotter_than_measured(GREEDY, measured) is None
    assert hotter_than_measured(SamplingSettings(temperature=0.71), measured) is not None
