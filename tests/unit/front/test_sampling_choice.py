from __future__ import annotations

from typing import Any

import pytest
from tests.support.calibrations import calibration, kind_result, memory_step

from selfspec.sampling_choice import SamplingChoice, hotter_than_measured
from selfspec_runtime.errors import UsageError
from selfspec_runtime.sampling import SamplingSettings

GREEDY = SamplingSettings()
WARM = SamplingSettings(temperature=0.6, top_k=20, top_p=0.9)


@pytest.mark.parametrize(
    ("asked", "own", "law"),
    [
        ({}, GREEDY, GREEDY),
        ({}, WARM, WARM),
        ({"temperature": 0.0}, WARM, SamplingSettings(temperature=0.0, top_k=20, top_p=0.9)),
        ({"temperature": 0.8}, GREEDY, SamplingSettings(temperature=0.8)),
        ({"top_p": 0.5}, GREEDY, SamplingSettings(temperature=1.0, top_p=0.5)),
        ({"top_p": 0.5}, WARM, SamplingSettings(temperature=0.6, top_k=20, top_p=0.5)),
        ({"top_k": 0}, WARM, SamplingSettings(temperature=0.6, top_p=0.9)),
        ({"min_p": 0.1, "seed": 7, "mode": "match"}, GREEDY, SamplingSettings(1.0, None, None, 0.1, 7, "match")),
    ],
)
def test_what_is_not_asked_for_is_the_models_own(
    asked: dict[str, Any], own: SamplingSettings, law: SamplingSettings
) -> None:
    assert SamplingChoice(**asked).over(own) == law


@pytest.mark.parametrize("asked", [{"temperature": -1.0}, {"top_p": 0.0}, {"top_k": -3}, {"min_p": 1.0}, {"seed": -1}])
def test_values_outside_of_their_range_are_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(asked))):
        SamplingChoice(**asked).over(GREEDY)


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
