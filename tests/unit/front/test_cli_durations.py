from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfspec.cli.durations import clock_time, parse_duration
from selfspec_runtime.errors import UsageError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("600", 600), ("90s", 90), ("10m", 600), ("1h", 3600), ("1h30m", 5400), ("1.5 h", 5400), (" 2min ", 120)],
)
def test_times_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-5m", "ten minutes", "10 x", "m", "10m!", "1h 0x"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not a time\. Write something like 90s, 10m or 1h30m"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (5, "0:05"), (245, "4:05"), (3845, "1:04:05"), (-3, "0:00")]
)
def test_times_are_written(seconds: float, text: str) -> None:
    assert clock_time(seconds) == text


@given(st.integers(0, 99), st.integers(0, 59), st.integers(1, 59))
def test_parts_add_up(hours: int, minutes: int, seconds: int) -> None:
    assert parse_duration(f"{hours}h{minutes}m{seconds}s") == hours * 3600 + minutes * 60 + seconds
