from __future__ import annotations

from typing import Any

import pytest

from selfspec_runtime.errors import UsageError
from selfspec_runtime.sampling import SamplingSettings
from selfspec_runtime.sampling_choice import SamplingChoice

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
