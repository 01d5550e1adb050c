"""Every controller keeps the contract; what is its own is tested beside."""

from __future__ import annotations

from typing import ClassVar

import pytest
from tests.support.contracts import ControllerContract

from selfspec_runtime.controllers.confidence import ConfidenceController
from selfspec_runtime.controllers.fixed import FixedController, FixedSpec


class TestFixed(ControllerContract):
    controller: ClassVar = {"kind": "fixed", "num_draft_tokens": 4}
    malformed: ClassVar = [
        {"num_draft_tokens": 0},
        {"num_draft_tokens": 65},
        {"num_draft_tokens": 1.5},
        {"kind": "none"},
    ]


class TestConfidence(ControllerContract):
    controller: ClassVar = {"kind": "confidence", "num_draft_tokens": 7, "draft_confidence_threshold": 0.3}
    malformed: ClassVar = [
        {"num_draft_tokens": 0},
        {"num_draft_tokens": 65},
        {"draft_confidence_threshold": -0.1},
        {"draft_confidence_threshold": 1.1},
        {"draft_confidence_threshold": None},
    ]


def test_the_fixed_number_is_drafted_and_no_more() -> None:
    controller: ClassVar = FixedController(3)
    assert [controller.wants_more(number, 0.0) for number in (1, 2, 3)] == [True, True, False]


@pytest.mark.parametrize(("confidence", "goes_on"), [(0.59, False), (0.6, True), (1.0, True)])
def test_a_draft_goes_on_from_the_threshold_on(confidence: float, goes_on: bool) -> None:
    assert ConfidenceController(8, 0.6).wants_more(1, confidence) is goes_on


def test_one_draft_is_not_called_drafts() -> None:
    assert [FixedSpec(num_draft_tokens=n).describe() for n in (1, 2)] == ["1 draft", "2 drafts"]
