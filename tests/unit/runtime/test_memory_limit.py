from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.calibrations import QUANTIZED, calibration, memory_step

from selfspec_runtime.errors import UsageError
from selfspec_runtime.memory_limit import ZERO_STEP, MemoryLimit, choose_step, next_step_up, parse_memory_limit


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("0", MemoryLimit(num_bytes=0, share=None)),
        ("500MB", MemoryLimit(num_bytes=500_000_000, share=None)),
        ("1.5 gib", MemoryLimit(num_bytes=1_610_612_736, share=None)),
        ("30%", MemoryLimit(share=0.3)),
    ],
)
def test_amounts_are_read(text: str, limit: MemoryLimit) -> None:
    assert parse_memory_limit(text) == limit


@pytest.mark.parametrize("text", ["", "much", "-1MB", "30 %%", "1,5GB", "5 apples"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not an amount of memory\. Write bytes, such as 500MB"):
        parse_memory_limit(text)


@given(st.integers(0, 10**12), st.integers(0, 10**12))
def test_a_byte_limit_allows_what_fits(limit: int, held: int) -> None:
    assert MemoryLimit(num_bytes=limit, share=None).allows(extra_bytes=held, extra_share=0.5) == (held <= limit)


ZERO = memory_step(speedup=1.2)
COPY = memory_step(QUANTIZED, name="quantized", extra_bytes=270_000, speedup=1.9)
BOTH = calibration(ZERO, COPY)


def test_without_a_limit_the_calibrated_choice_stands() -> None:
    assert choose_step(BOTH) == ZERO
    assert choose_step(BOTH.model_copy(update={"chosen": 1})) == COPY


@pytest.mark.parametrize(
    ("text", "name"), [("26%", "zero"), ("27%", "quantized"), ("0", "zero"), ("269999", "zero"), ("270kB", "quantized")]
)
def test_a_limit_chooses_the_fastest_step_within(text: str, name: str) -> None:
    assert choose_step(BOTH, parse_memory_limit(text)).name == name


def test_a_larger_step_that_is_slower_is_not_taken() -> None:
    slow = memory_step(QUANTIZED, name="quantized", extra_bytes=270_000, speedup=1.1)
    assert choose_step(calibration(ZERO, slow), parse_memory_limit("1GB")).name == "zero"


def test_where_nothing_is_enabled_the_smallest_step_says_so() -> None:
    steps = [memory_step(enabled=False), memory_step(QUANTIZED, extra_bytes=270_000, enabled=False)]
    assert choose_step(calibration(*steps), parse_memory_limit("1GB")) == steps[0]


def test_the_zero_step_holds_up_to_one_per_cent() -> None:
    assert ZERO_STEP.allows(extra_bytes=10, extra_share=0.01)
    assert not ZERO_STEP.allows(extra_bytes=10, extra_share=0.011)


def test_the_next_step_up_is_the_smallest_larger_one() -> None:
    assert next_step_up(BOTH, ZERO) == COPY
    assert next_step_up(BOTH, COPY) is None
