"""Extra memory: what a plan may hold beyond the model's weights, and which plan of a calibration that allows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from selfspec_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from selfspec_runtime.calibration import MemoryStep

StepName = Literal["zero", "quantized"]

ZERO_STEP_SHARE = 0.01
"""Share of the weights up to which extra memory counts as none: linear exit heads and tables fit in."""

_UNITS = {
    "": 1,
    "b": 1,
    **{unit: 1000**power for power, unit in enumerate(("kb", "mb", "gb", "tb"), start=1)},
    **{unit[0]: 1000**power for power, unit in enumerate(("kb", "mb", "gb", "tb"), start=1)},
    **{unit: 1024**power for power, unit in enumerate(("kib", "mib", "gib", "tib"), start=1)},
}
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*|%)\s*", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class MemoryLimit:
    """The most extra memory that a plan may hold; give one of both.

    Attributes:
        max_bytes: In bytes, or None.
        max_share: As a share of the weights, or None.
    """

    max_bytes: int | None = None
    max_share: float | None = None

    def admits(self, *, extra_bytes: int, extra_share: float) -> bool:
        """Whether so much extra memory is allowed.

        At most `ZERO_STEP_SHARE` of the weights is always allowed: it is what "no extra memory" means here.

        Args:
            extra_bytes: Bytes beyond the weights.
            extra_share: The same as a share of the weights.
        """
        if extra_share <= ZERO_STEP_SHARE:
            return True
        within_bytes = self.max_bytes is not None and extra_bytes <= self.max_bytes
        within_share = self.max_share is not None and extra_share <= self.max_share
        return within_bytes or within_share


ZERO_STEP = MemoryLimit(max_share=ZERO_STEP_SHARE)


def parse_memory(text: str | None) -> MemoryLimit:
    """Reads a limit as people write it.

    Args:
        text: ``500MB``, ``1.5GiB``, ``30%`` (of the weights), ``0``, a plain number of bytes, or None for the zero
            step. KB, MB, GB and TB are powers of 1000, KiB, MiB, GiB and TiB of 1024; case does not matter.

    Raises:
        UsageError: It is none of these.
    """
    if text is None:
        return ZERO_STEP
    match = _AMOUNT.fullmatch(text)
    unit = match[2].lower() if match is not None else ""
    if match is None or unit not in (*_UNITS, "%"):
        message = f"{text!r} is not an amount of memory: write, for example, 500MB, 1.5GiB, 30% (of the weights) or 0."
        raise UsageError(message)
    if unit == "%":
        return MemoryLimit(max_share=float(match[1]) / 100)
    return MemoryLimit(max_bytes=int(float(match[1]) * _UNITS[unit]))


def weight_bytes(model: nn.Module) -> int:
    """Bytes of a model's weights as they are stored; tied weights count once, packed ones and block scales too."""
    total = sum(int(getattr(module, "packed_bytes", 0)) for module in model.modules())
    for parameter in model.parameters():
        scales = getattr(getattr(parameter, "quant_state", None), "absmax", None)
        total += parameter.numel() * parameter.element_size()
        total += 0 if scales is None else scales.numel() * scales.element_size()
    return total


def step_of(*, extra_bytes: int, weight_bytes: int) -> StepName:
    """The step of extra memory that a plan belongs to."""
    return "zero" if extra_bytes <= ZERO_STEP_SHARE * weight_bytes else "quantized"


def choose_step(steps: Sequence[MemoryStep], limit: MemoryLimit) -> int:
    """Chooses among a calibration's steps.

    Args:
        steps: At least one, in ascending order of extra memory.
        limit: What is allowed.

    Returns:
        Index of the enabled step with the largest measured speedup that fits; at equal speedups the one with less
        memory. Where no enabled step fits, 0: the first step, whose plan is then not enabled.
    """
    fitting = [
        index
        for index, step in enumerate(steps)
        if step.enabled and limit.admits(extra_bytes=step.extra_bytes, extra_share=step.extra_share)
    ]
    return max(fitting, key=lambda index: (_speedup(steps[index]), -index), default=0)


def _speedup(step: MemoryStep) -> float:
    return step.overall.speedup.value if step.overall is not None else 0.0
