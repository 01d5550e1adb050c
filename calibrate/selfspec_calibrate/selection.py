"""Which plan to judge: the finalists are measured anew, since the winner of a noisy search is a lucky one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

from selfspec_calibrate.block_store import BlockStore
from selfspec_calibrate.interleave import OUT_OF_MEMORY, shuffled
from selfspec_calibrate.interruption import interruptible
from selfspec_calibrate.measurement import EngineArm, MeasuredPrompt, PlanEngine, warm_up
from selfspec_calibrate.pair import PromptPair, speedup
from selfspec_calibrate.trial_book import plan_key
from selfspec_runtime.calibration import TimedPlan
from selfspec_runtime.drafts.early_exit import EarlyExitSpec
from selfspec_runtime.drafts.first_of import NgramFirstSpec
from selfspec_runtime.drafts.ngram import NgramSpec
from selfspec_runtime.drafts.quantized import QuantizedSpec
from selfspec_runtime.engine import GenerationSettings
from selfspec_runtime.errors import SelfspecError
from selfspec_runtime.memory import StepName, step_of
from selfspec_runtime.plan import PLAIN, DraftPlan

if TYPE_CHECKING:
    from selfspec_runtime.drafts.registry import AnySourceSpec

TOLERANCE = 0.015
"""Plans that are so little slower than the best one are as good, and the cheapest of them is taken."""

FINALIST_BAND = 0.07
"""Plans that are further behind the best one of the search did not lose by bad luck."""

_STEPS: tuple[StepName, ...] = ("zero", "quantized")


@dataclass(frozen=True, kw_only=True)
class Selected:
    """The plan of a memory step that the verdict is to be passed on.

    Attributes:
        step: The memory step.
        plan: The plan; plain decoding if no plan of the step could be timed.
        extra_bytes: What it holds beyond the model.
        speedup: On search prompts: measured anew, or the search's own value if it had no rival; None if untimed.
    """

    step: StepName
    plan: DraftPlan
    extra_bytes: int
    speedup: float | None


@dataclass(frozen=True)
class _Finalist:
    plan: DraftPlan
    engine: PlanEngine
    is_whole: bool
    search_speedup: float

    @property
    def arm(self) -> EngineArm:
        return EngineArm(plan_key(self.plan), self.engine)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Chooses a plan for each memory step.

    Attributes:
        make_engine: Makes an engine for a plan, on the shared target.
        prompts: The search prompts.
        settings: How to generate.
        weight_bytes: Bytes of the model's weights.
        num_timed: Prompts that the search timed plans on, where these are not all; a plan timed on fewer was given up.
        max_finalists: Most plans of a step to measure anew.
        tolerance: Share of the best speedup within which the cheapest plan wins.
        repeats: Mirrored blocks per prompt.
        seed: Of the order of prompts.
        deadline: Time of ``clock`` after which no prompt is begun but the first, or None.
        clock: Gives seconds.
        store: Keeps the measurements.
    """

    make_engine: Callable[[DraftPlan], PlanEngine]
    prompts: Sequence[MeasuredPrompt]
    settings: GenerationSettings
    weight_bytes: int
    num_timed: int | None = None
    max_finalists: int = 3
    tolerance: float = TOLERANCE
    repeats: int = 1
    seed: int = 0
    deadline: float | None = None
    clock: Callable[[], float] = monotonic
    store: BlockStore = field(default_factory=BlockStore)

    def select(self, timed: Sequence[TimedPlan]) -> tuple[Selected, ...]:
        """Chooses.

        Args:
            timed: Results of one timed study or of several.

        Returns:
            One for the zero step, always, and one for the quantised step if a plan of it was timed.

        Raises:
            Interrupted: Ctrl-C; what was measured is saved.
        """
        finalists = self._finalists(timed)
        anew = self._measure([each for found in finalists.values() if len(found) > 1 for each in found])
        chosen = tuple(self._chosen(step, found, anew) for step, found in finalists.items() if found)
        if not finalists["zero"]:
            return (Selected(step="zero", plan=PLAIN, extra_bytes=0, speedup=None), *chosen)
        return chosen

    def _finalists(self, timed: Sequence[TimedPlan]) -> dict[StepName, list[_Finalist]]:
        """The best plans of each step; plans that were given up only where the step has no other."""
        found: dict[StepName, list[_Finalist]] = {step: [] for step in _STEPS}
        for each in sorted(timed, key=self._merit, reverse=True):
            finalist = None if each.plan.is_plain else self._finalist(each)
            if finalist is None:
                continue
            rivals = found[step_of(extra_bytes=finalist.engine.extra_bytes, weight_bytes=self.weight_bytes)]
            if not rivals or (self._is_close(finalist, rivals[0]) and len(rivals) < self.max_finalists):
                rivals.append(finalist)
        return found

    def _merit(self, timed: TimedPlan) -> tuple[bool, float]:
        whole = len(self.prompts) if self.num_timed is None else self.num_timed
        return timed.num_prompts >= whole, timed.measured_speedup

    def _is_close(self, finalist: _Finalist, best: _Finalist) -> bool:
        return finalist.is_whole == best.is_whole and finalist.search_speedup >= best.search_speedup * (
            1 - FINALIST_BAND
        )

    def _finalist(self, timed: TimedPlan) -> _Finalist | None:
        try:
            return _Finalist(timed.plan, self.make_engine(timed.plan), *self._merit(timed))
        except (SelfspecError, *OUT_OF_MEMORY):
            return None  # it ran in the study; if it cannot now, another one is chosen

    def _measure(self, finalists: list[_Finalist]) -> dict[str, float]:
        """Speedups of plans that have rivals, by key."""
        if not finalists:
            return {}
        plain = EngineArm("plain", self.make_engine(PLAIN))
        arms = [plain, *(each.arm for each in finalists)]
        for arm in arms:
            warm_up(arm.engine, self.prompts[0], self.settings)
        pairs: dict[str, list[PromptPair]] = {each.arm.name: [] for each in finalists}
        with interruptible("the finalists measured so far are saved") as guard:
            for place, prompt in enumerate(shuffled(self.prompts, seed=self.seed)):
                if place and self.deadline is not None and self.clock() >= self.deadline:
                    break
                guard.check()
                block = self.store.block(arms, prompt, self.settings, repeats=self.repeats)
                for name in block.failures:
                    pairs.pop(name, None)
                for name, known in pairs.items():
                    known.append(PromptPair.of(block.runs["plain"], block.runs[name]))
        values = {name: speedup(known) for name, known in pairs.items()}
        return {name: value for name, value in values.items() if value is not None}

    def _chosen(self, step: StepName, finalists: list[_Finalist], anew: dict[str, float]) -> Selected:
        values = {each.arm.name: anew.get(each.arm.name) for each in finalists}
        measured = [each for each in finalists if values[each.arm.name] is not None] or finalists[:1]
        speed = {each.arm.name: values[each.arm.name] or each.search_speedup for each in measured}
        enough = (1 - self.tolerance) * max(speed.values())
        good = [each for each in measured if speed[each.arm.name] >= enough]
        best = min(good, key=lambda each: (each.engine.extra_bytes, *complexity(each.plan), -speed[each.arm.name]))
        return Selected(step=step, plan=best.plan, extra_bytes=best.engine.extra_bytes, speedup=speed[best.arm.name])


def complexity(plan: DraftPlan) -> tuple[int, int, int]:
    """Orders plans from the simplest: kind of source, then kind of controller, then draft length."""
    kind = 0 if plan.source is None else _complexity(plan.source)
    return kind, int(plan.controller.kind != "fixed"), plan.max_draft_tokens


def _complexity(source: AnySourceSpec) -> int:
    if isinstance(source, NgramFirstSpec):
        return 10 + _complexity(source.then)
    if isinstance(source, NgramSpec):
        return 1
    needs_more = isinstance(source, QuantizedSpec) or (isinstance(source, EarlyExitSpec) and source.head != "own")
    return 3 if needs_more else 2
