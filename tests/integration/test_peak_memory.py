"""Zero extra memory is real: a layer or n-gram plan's process holds what plain decoding's holds."""

from __future__ import annotations

import pytest
from benchmarks.peak_memory import Peak, measure
from tests.support.demo_model import DEMO_MODEL, needs_demo_model

pytestmark = [pytest.mark.demo, pytest.mark.slow, needs_demo_model, pytest.mark.xdist_group("peak_memory")]

TOLERANCE = 0.02


@pytest.fixture(scope="module")
def plain() -> Peak:
    return measure(str(DEMO_MODEL), "plain")


@pytest.mark.parametrize("name", ["n-gram", "early exit", "skip set"])
def test_a_plan_of_the_zero_step_holds_no_more_than_plain_decoding(plain: Peak, name: str) -> None:
    peak = measure(str(DEMO_MODEL), name)
    assert peak.extra_bytes == 0
    assert peak.peak_bytes <= plain.peak_bytes * (1 + TOLERANCE)


def test_the_measurement_sees_a_copy(plain: Peak) -> None:
    peak = measure(str(DEMO_MODEL), "NF4 copy")
    assert peak.extra_bytes > 50_000_000
    assert peak.peak_bytes > plain.peak_bytes * (1 + TOLERANCE)
