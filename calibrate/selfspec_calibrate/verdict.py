"""The verdict: chosen plans are measured once on prompts that the search has never seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product

from selfspec_calibrate import events
from selfspec_calibrate.block_store import BlockStore
from selfspec_calibrate.divergence import first_divergence
from selfspec_calibrate.interleave import Block, shuffled
from selfspec_calibrate.interruption import interruptible
from selfspec_calibrate.measurement import Arm, EngineArm, MeasuredPrompt, PlanEngine, warm_up
from selfspec_calibrate.result_rows import ALL_KINDS, PromptRuns, result_rows
from selfspec_calibrate.selection import Selected
from selfspec_calibrate.trial_book import plan_key
from selfspec_runtime.calibration import Interval, KindResult, MemoryStep
from selfspec_runtime.engine import GenerationSettings
from selfspec_runtime.plan import PLAIN, DraftPlan

THRESHOLD = 1.0
"""What the lower end of the interval has to clear."""

THRESHOLD_WITHOUT_INTERVAL = 1.02
"""What the value has to clear where there are too few prompts for an interval."""

Margin = Callable[[Sequence[int], Sequence[int], GenerationSettings], float]


@dataclass(frozen=True)
class _Measured:
    settings: GenerationSettings
    prompt: MeasuredPrompt
    block: Block


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
        arms = {each.step: self._arm(each.plan) for each in selected if not each.plan.is_plain}
        measured = self._measure(list(arms.values())) if arms else []
        return tuple(self._step(each, arms.get(each.step), measured) for each in selected)

    def _arm(self, plan: DraftPlan) -> EngineArm:
        engine = self.make_engine(plan)
        warm_up(engine, self.prompts[0], self.settings[0])
        return EngineArm(plan_key(plan), engine)

    def _measure(self, plans: list[EngineArm]) -> list[_Measured]:
        """Blocks of all prompts at all settings."""
        arms: list[Arm] = [self._arm(PLAIN), *plans]
        middle = [] if self.stock is None else [self.stock]
        found: list[_Measured] = []
        order = shuffled(self.prompts, seed=self.seed)
        with interruptible("the held-out prompts measured so far are saved") as guard:
            for settings, prompt in product(self.settings, order):
                guard.check()
                block = self.store.block(arms, prompt, settings, repeats=self.repeats, middle=middle)
                arms = [arm for arm in arms if arm.name not in block.failures]
                middle = self._still_working(middle, block)
                found.append(_Measured(settings, prompt, block))
                self.listener(events.Progressed(name="verdict", done=len(found), detail=settings.sampling.describe()))
        return found

    def _still_working(self, middle: list[Arm], block: Block) -> list[Arm]:
        for arm in middle:
            if arm.name in block.failures:
                told = f"The comparison with transformers is left out: {block.failures[arm.name]}"
                self.listener(events.Noted(told))
        return [arm for arm in middle if arm.name not in block.failures]

    def _rows(self, arm: EngineArm, measured: list[_Measured]) -> tuple[KindResult, ...]:
        """Rows at the first settings, then at the others."""
        at = [[each for each in measured if each.settings is settings] for settings in self.settings]
        tables = (
            result_rows([self._runs(each, arm) for each in found], settings.sampling.describe())
            for settings, found in zip(self.settings, at, strict=True)
        )
        return tuple(row for table in tables for row in table)

    def _runs(self, measured: _Measured, arm: EngineArm) -> PromptRuns:
        runs = measured.block.runs
        plain, plan = runs[plan_key(PLAIN)], runs[arm.name]
        return PromptRuns(
            kind=measured.prompt.kind,
            plain=plain,
            plan=plan,
            stock=runs.get(self.stock.name, []) if self.stock is not None else [],
            margin=self._margin(measured, plain[0].token_ids, plan[0].token_ids),
        )

    def _margin(self, measured: _Measured, plain: tuple[int, ...], plan: tuple[int, ...]) -> float | None:
        place = first_divergence(plain, plan) if measured.settings.sampling.greedy else None
        if place is None:
            return None
        return self.margin(measured.prompt.token_ids, plain[:place], measured.settings)

    def _step(self, selected: Selected, arm: EngineArm | None, measured: list[_Measured]) -> MemoryStep:
        failures = [] if arm is None else [each.block.failures.get(arm.name) for each in measured]
        failure = next((str(each) for each in failures if each is not None), None)
        rows = self._rows(arm, measured) if arm is not None and failure is None else ()
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
