"""How much memory a plan may hold beyond the model, and which calibrated plan that allows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfspec_runtime.errors import UsageError

if TYPE_CHECKING:
    from selfspec_runtime.calibration import Calibration, MemoryStep

ZERO_STEP_SHARE = 0.01
"""What is always allowed, as a share of the weights, so that linear heads and tables fit."""

_UNITS = {"": 1, "b": 1, **{f"{prefix}b": 1000**n for n, prefix in enumerate("kmgt", start=1)}}
_UNITS |= {f"{prefix}ib": 1024**n for n, prefix in enumerate("kmgt", start=1)}
_LIMIT = re.compile(r"(\d+(?:\.\d+)?)\s*(%|[a-z]*)", re.IGNORECASE)


@dataclass(frozen=True)
class MemoryLimit:
    """An amount of extra memory.

    Attributes:
        num_bytes: In bytes, or None where it is a share.
        share: As a share of the weights, or None where it is in bytes.
    """

    num_bytes: int | None = None
    share: float | None = ZERO_STEP_SHARE

    def allows(self, *, extra_bytes: int, extra_share: float) -> bool:
        """Whether a plan that holds this much keeps within the limit."""
        if extra_share <= ZERO_STEP_SHARE:
            return True
        if self.num_bytes is not None:
            return extra_bytes <= self.num_bytes
        return extra_share <= (self.share or 0.0)


ZERO_STEP = MemoryLimit()


def parse_memory_limit(text: str) -> MemoryLimit:
    """Reads an amount such as ``500MB``, ``1.5GiB``, ``30%`` or ``0``.

    Raises:
        UsageError: It is not an amount.
    """
    match = _LIMIT.fullmatch(text.strip())
    unit = match[2].lower() if match else None
    if match is not None and unit == "%":
        return MemoryLimit(share=float(match[1]) / 100)
    if match is None or unit not in _UNITS:
        message = f"{text!r} is not an amount of memory. Write bytes, such as 500MB or 2GiB, or a share, such as 30%."
        raise UsageError(message)
    return MemoryLimit(num_bytes=int(float(match[1]) * _UNITS[unit]), share=None)


def choose_step(calibration: Calibration, limit: MemoryLimit | None = None) -> MemoryStep:
    """The calibrated step to use.

    Args:
        calibration: The file's content.
        limit: Extra memory that may be used, or None for the step that was chosen at calibration.

    Returns:
        The fastest enabled step within the limit; where there is none, the smallest step, which is not enabled.
    """
    if limit is None:
        return calibration.steps[calibration.chosen]
    allowed = [step for step in calibration.steps if step.enabled and _allows(limit, step)]
    return max(allowed, key=_speedup) if allowed else calibration.steps[0]


def next_step_up(calibration: Calibration, step: MemoryStep) -> MemoryStep | None:
    """The smallest step that holds more memory than ``step``, or None."""
    larger = [other for other in calibration.steps if other.extra_bytes > step.extra_bytes]
    return min(larger, key=lambda other: other.extra_bytes, default=None)


def _allows(limit: MemoryLimit, step: MemoryStep) -> bool:
    return limit.allows(extra_bytes=step.extra_bytes, extra_share=step.extra_share)


def _speedup(step: MemoryStep) -> float:
    return step.overall.speedup.value if step.overall is not None else 1.0
