"""A calibration measures the law that `generate` would use when it is asked for the same."""

from __future__ import annotations

from typing import Any

import pytest

from selfspec_calibrate.session import resolve_sampling
from selfspec_calibrate.settings import CalibrationSettings
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
