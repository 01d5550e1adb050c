"""Sampling settings: what is refused at construction, and how they read in one line."""

from __future__ import annotations

import dataclasses
import math

import pytest

from selfspec_runtime.errors import UsageError
from selfspec_runtime.sampling import SMALLEST_TEMPERATURE, SamplingSettings


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", 1e-30),
        ("top_k", 0),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_k", True),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("min_p", -0.01),
        ("min_p", 1.0),
        ("min_p", math.nan),
        ("seed", -1),
        ("seed", 2**64),
        ("seed", 0.5),
        ("mode", "typical"),
    ],
)
def test_a_value_outside_of_its_range_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"{field} is .*: use "):
        SamplingSettings(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.0},
        {"temperature": SMALLEST_TEMPERATURE},
        {"temperature": 1},
        {"top_k": 1, "top_p": 1.0, "min_p": 0.0},
        {"seed": 2**64 - 1, "mode": "match"},
    ],
)
def test_the_ends_of_the_ranges_are_accepted_as_given(fields: dict[str, object]) -> None:
    settings = SamplingSettings(**fields)  # type: ignore[arg-type]
    assert {name: getattr(settings, name) for name in fields} == fields


def test_only_temperature_zero_is_greedy() -> None:
    assert SamplingSettings().greedy
    assert SamplingSettings(top_k=5).greedy
    assert not SamplingSettings(temperature=SMALLEST_TEMPERATURE).greedy


def test_the_description_names_what_has_an_effect() -> None:
    assert SamplingSettings(top_k=40, seed=3).describe() == "greedy"
    assert SamplingSettings(temperature=1.0).describe() == "temperature 1, seed 0, rejection"
    full = SamplingSettings(0.7, top_k=50, top_p=0.9, min_p=0.05, seed=3, mode="match")
    assert full.describe() == "temperature 0.7, top-k 50, top-p 0.9, min-p 0.05, seed 3, match"


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingSettings().temperature = 1.0  # type: ignore[misc]
