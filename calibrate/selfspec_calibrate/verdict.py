"""The verdict: chosen plans are measured once on prompts that the search has never seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from selfspec_calibrate.held_out import HeldOut, HeldOutRuns
from selfspec_calibrate.result_rows import ALL_KINDS
from selfspec_calibrate.selection import Selected
from selfspec_runtime.calibration import Interval, KindResult, MemoryStep

THRESHOLD = 1.0
"""What the lower end of the interval has to clear."""

THRESHOLD_WITHOUT_INTERVAL = 1.02
"""What the value has to clear where there are too few prompts for an interval."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Measures plain decoding, the chosen plan of each memory step and ``transformers`` generate, interleaved.

    Attributes:
        held_out: What is measured, and how; the first of its settings is what the verdict rests on, further ones only
            add rows.
        weight_bytes: Bytes of the model's weights.
    """

    held_out: HeldOut
    weight_bytes: int

    def judge(self, selected: Sequence[Selected]) -> tuple[MemoryStep, ...]:
        """Passes the verdict on the chosen plans.

        Args:
            selected: One per memory step, in ascending order of memory.

        Returns:
            The steps as they stand in the calibration file.

        Raises:
            Interrupted: Ctrl-C; what was measured is saved.
            SelfspecError: Plain decoding fails.
        """
        plans = [each.plan for each in selected if not each.plan.is_plain]
        measured = self.held_out.measure(plans) if plans else None
        return tuple(self._step(each, None if each.plan.is_plain else measured) for each in selected)

    def _step(self, selected: Selected, measured: HeldOutRuns | None) -> MemoryStep:
        failure = None if measured is None else measured.failure(selected.plan)
        rows = () if measured is None else measured.rows(selected.plan)
        enabled, reason = _decision(selected, self._overall(rows), failure)
        return MemoryStep(
            name=selected.step,
            extra_bytes=selected.extra_bytes,
            extra_share=selected.extra_bytes / self.weight_bytes,
            enabled=enabled,
            reason=reason,
            plan=selected.plan,
            results=rows,
        )

    def _overall(self, rows: Sequence[KindResult]) -> KindResult | None:
        """The row that the verdict rests on."""
        sampling = self.held_out.settings[0].sampling.describe()
        return next((row for row in rows if row.kind == ALL_KINDS and row.sampling == sampling), None)


def _decision(selected: Selected, overall: KindResult | None, failure: str | None) -> tuple[bool, str]:
    if selected.plan.is_plain:
        return False, "No draft of this step could be timed, so plain decoding is used."
    if failure is not None:
        return False, f"It failed on a held-out prompt, so plain decoding is used: {failure}"
    if overall is None:
        return False, "No held-out prompt was answered with more than one token, so there was nothing to time."
    return clears(overall.speedup), _reason(overall)


def clears(speedup: Interval) -> bool:
    """Whether a measured speedup is enough to use a plan."""
    if speedup.low is None:
        return speedup.value > THRESHOLD_WITHOUT_INTERVAL
    return speedup.low > THRESHOLD


def _reason(overall: KindResult) -> str:
    measured, prompts = overall.speedup, f"{overall.num_prompts} held-out prompt{'s'[: overall.num_prompts > 1]}"
    value = f"On {prompts} it decodes {measured.value:.2f} times as fast as plain decoding"
    if measured.low is None or measured.high is None:
        bound = f"too few prompts for an interval, and {THRESHOLD_WITHOUT_INTERVAL:.2f} is asked for"
        told = f"{value} ({bound})"
    else:
        told = f"{value} ({measured.level:.0%} interval {measured.low:.2f} to {measured.high:.2f})"
    return f"{told}." if clears(measured) else f"{told}, which is not enough: plain decoding is used."
