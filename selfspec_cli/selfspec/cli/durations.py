"""Times as people write and read them."""

from __future__ import annotations

import re

from selfspec_runtime.errors import UsageError

_UNITS_S = {"s": 1, "": 1, "m": 60, "min": 60, "h": 3600}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(h|min|m|s|)")


def parse_duration(text: str) -> float:
    """Reads ``600s``, ``10m``, ``1h30m`` or a plain number of seconds.

    Returns:
        Seconds, more than 0.

    Raises:
        UsageError: It is not a time.
    """
    stripped = text.strip().lower()
    parts = _PART.findall(stripped)
    whole = "".join(f"{number}{unit}" for number, unit in parts)
    seconds = sum(float(number) * _UNITS_S[unit] for number, unit in parts)
    if whole != stripped.replace(" ", "") or seconds <= 0:
        message = f"{text!r} is not a time. Write something like 90s, 10m or 1h30m."
        raise UsageError(message)
    return seconds


def clock_time(seconds: float) -> str:
    """Writes seconds as ``4:05`` or ``1:04:05``."""
    whole = max(0, round(seconds))
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"
