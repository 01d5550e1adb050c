"""A calibration measures the law that `generate` would use when it is asked for the same."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from selfspec_calibrate.session import Session, resolve_sampling
from selfspec_calibrate.settings import CalibrationSettings
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.generation_defaults import GenerationDefaults
from selfspec_runtime.sampling import SamplingSettings
from selfspec_runtime.sampling_choice import SamplingChoice

OWN = (SamplingSettings(), SamplingSettings(temperature=0.6, top_k=20, top_p=0.9))


@pytest.mark.parametrize("own", OWN, ids=["greedy", "warm"])
@pytest.mark.parametrize("asked", [{}, {"top_p": 0.5}, {"top_k": 0}, {"temperature": 0.0}, {"min_p": 0.1, "seed": 3}])
def test_what_is_asked_for_means_the_same_in_both(own: SamplingSettings, asked: dict[str, Any]) -> None:
    settings = CalibrationSettings.model_validate({"model": {"model": "m"}, "prompts": "p.jsonl", **asked})
    defaults = GenerationDefaults((2,), None, None, None, (), own, ())
    assert resolve_sampling(settings, defaults) == SamplingChoice(**asked).over(own)


@pytest.mark.parametrize("temperature", [-1.0, math.nan, math.inf, 1e-30])
@pytest.mark.parametrize("field", ["temperature", "also_temperatures"])
def test_a_temperature_that_no_run_could_use_is_refused_before_any_work(field: str, temperature: float) -> None:
    value = temperature if field == "temperature" else [0.7, temperature]
    with pytest.raises(ValidationError, match=r"use 0 \(greedy\) or 1e-20 and more"):
        CalibrationSettings.model_validate({"model": {"model": "m"}, "prompts": "p.jsonl", field: value})


@pytest.mark.parametrize(
    ("main", "measured"), [(0.0, [0.0, 0.7, 1.0]), (0.7, [0.7, 0.0, 1.0]), (0.5, [0.5, 0.0, 0.7, 1.0])]
)
def test_each_temperature_is_measured_once(main: float, measured: list[float]) -> None:
    settings = CalibrationSettings.model_validate(
        {"model": {"model": "m"}, "prompts": "p.jsonl", "also_temperatures": [0.0, 0.7, 1.0, 0.7, 0.0]}
    )
    own = GenerationSettings(max_new_tokens=8, sampling=SamplingSettings(temperature=main, seed=3))
    unused: Any = None
    session = Session(settings, unused, unused, unused, unused, unused, own, ())
    assert [each.sampling.temperature for each in session.verdict_generations] == measured
    assert session.verdict_generations[0] is own
