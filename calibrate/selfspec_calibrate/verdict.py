"""The verdict: chosen plans are measured once on prompts that the search has never seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from selfspec_calibrate import events
from selfspec_calibrate.block_store import BlockStore
from selfspec_calibrate.held_out import HeldOut, HeldOutRuns, Margin
from selfspec_calibrate.measurement import Arm, MeasuredPrompt, PlanEngine
from selfspec_calibrate.result_rows import ALL_KINDS
from selfspec_calibrate.selection import Selected
from selfspec_runtime.calibration import Interval, KindResult, MemoryStep
from selfspec_runtime.engine import GenerationSettings
from selfspec_runtime.plan import DraftPlan

THRESHOLD = 1.0
"""What the lower end of the interval has to clear."""

THRESHOLD_WITHOUT_INTERVAL = 1.02
"""What the value has to clear where there are too few prompts for an interval."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Measures plain decoding, the chosen plan of each memory step and ``transformers`` generate, interleaved.

    Attributes:
        make_engine: Makes an engine for a plan, on the shared target.
        prompts: The held-out prompts.
        settings: How to generate; the first is what the verdict rests on, further ones only add rows.
        weight_bytes: Bytes of the model's weights.
        margin: Gives the top-two margin after a prompt and the tokens that two texts have in common, as
            `selfspec_calibrate.divergence.divergence_margin` does.
        stock: ``transformers`` generate, or None to leave it out.
        repeats: Mirrored blocks per prompt.
        seed: Of the order of prompts.
        store: Keeps the measurements.
        listener: Hears of progress.
    """

    make_engine: Callable[[DraftPlan], PlanEngine]
    prompts: Sequence[MeasuredPrompt]
    settings: Sequence[GenerationSettings]
    weight_bytes: int
    margin: Margin
    stock: Arm | None = None
    repeats: int = 1
    seed: int = 0
    store: BlockStore = field(default_factory=BlockStore)
    listener: events.Listener = events.ignore

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
        measured = self._held_out.measure(plans) if plans else None
        return tuple(self._step(each, None if each.plan.is_plain else measured) for each in selected)

    @property
    def _held_out(self) -> HeldOut:
        return HeldOut(
            make_engine=self.make_engine,
            prompts=self.prompts,
            settings=self.settings,
            margin=self.margin,
            stock=self.stock,
            repeats=self.repeats,
            seed=self.seed,
            store=self.store,
            listener=self.listener,
        )

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
        sampling = self.settings[0].sampling.describe()
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
