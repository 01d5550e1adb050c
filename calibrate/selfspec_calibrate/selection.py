"""Which plan to judge: the finalists are measured anew, since the winner of a noisy search is a lucky one."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from selfspec_calibrate.draft_families import in_turns
from selfspec_calibrate.head_to_head import HeadToHead, Standings
from selfspec_calibrate.interleave import OUT_OF_MEMORY
from selfspec_calibrate.leaders import STEPS
from selfspec_calibrate.measurement import EngineArm, PlanEngine, warm_up
from selfspec_calibrate.readiness import not_ready
from selfspec_calibrate.trial_book import plan_key
from selfspec_runtime.calibration import TimedPlan
from selfspec_runtime.errors import SelfspecError
from selfspec_runtime.memory import ZERO_STEP_SHARE, StepName, step_of
from selfspec_runtime.plan import PLAIN, DraftPlan

TOLERANCE = 0.015
"""A plan that is so little slower than the best one is taken where it holds clearly less memory."""

FINALIST_BAND = 0.07
"""Plans that are further behind the best one of the search did not lose by bad luck."""


def _unforeseen(plan: DraftPlan, prompt_ids: Collection[str]) -> None:
    del plan, prompt_ids


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
    timed: TimedPlan
    is_whole: bool

    @property
    def search_speedup(self) -> float:
        return self.timed.measured_speedup

    @property
    def arm(self) -> EngineArm:
        return EngineArm(plan_key(self.plan), self.engine)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Chooses a plan for each memory step.

    Attributes:
        make_engine: Makes an engine for a plan, on the shared target.
        head_to_head: Measures the finalists anew, on the search prompts.
        weight_bytes: Bytes of the model's weights.
        num_timed: Prompts that the search timed plans on, where these are not all; a plan timed on fewer was given up.
        max_finalists: Most plans of a step to measure anew.
        tolerance: Share of the best speedup that a plan may lack which holds less memory, by more than counts as none.
        foresee: Gives a plan's predicted speedup on some of the prompts, or None. What was measured on a part of the
            prompts is held to all of them by it.
    """

    make_engine: Callable[[DraftPlan], PlanEngine]
    head_to_head: HeadToHead
    weight_bytes: int
    num_timed: int | None = None
    max_finalists: int = 3
    tolerance: float = TOLERANCE
    foresee: Callable[[DraftPlan, Collection[str]], float | None] = _unforeseen

    def select(self, timed: Sequence[TimedPlan]) -> tuple[Selected, ...]:
        """Chooses.

        Args:
            timed: Results of one timed study or of several.

        Returns:
            One for the zero step, always, and one for the quantised step if a plan of it was timed.

        Raises:
            Interrupted: Ctrl-C; what was measured is saved.
        """
        finalists = {step: self._ready(found) for step, found in self._finalists(timed).items()}
        standings = self._measure([found for found in finalists.values() if len(found) > 1])
        chosen = tuple(self._chosen(step, found, standings) for step, found in finalists.items() if found)
        if not finalists["zero"]:
            return (Selected(step="zero", plan=PLAIN, extra_bytes=0, speedup=None), *chosen)
        return chosen

    def _finalists(self, timed: Sequence[TimedPlan]) -> dict[StepName, list[_Finalist]]:
        """The best plans of each step; plans that were given up only where the step has no other.

        Each family's best comes before any family's second: plans of one family are too much alike for all of them to
        be worth the time.
        """
        close: dict[StepName, dict[DraftPlan, _Finalist]] = {step: {} for step in STEPS}
        for each in sorted(timed, key=self._merit, reverse=True):
            finalist = None if each.plan.is_plain else self._finalist(each)
            if finalist is None:
                continue
            rivals = close[step_of(extra_bytes=finalist.engine.extra_bytes, weight_bytes=self.weight_bytes)]
            if not rivals or self._is_close(finalist, next(iter(rivals.values()))):
                rivals[each.plan] = finalist
        return {
            step: [rivals[plan] for plan in in_turns(rivals)[: self.max_finalists]] for step, rivals in close.items()
        }

    def _merit(self, timed: TimedPlan) -> tuple[bool, float]:
        return self._is_whole(timed), timed.measured_speedup

    def _is_whole(self, timed: TimedPlan) -> bool:
        return timed.num_prompts >= (len(self.head_to_head.prompts) if self.num_timed is None else self.num_timed)

    def _is_close(self, finalist: _Finalist, best: _Finalist) -> bool:
        enough = best.search_speedup * (1 - FINALIST_BAND)
        return finalist.is_whole == best.is_whole and finalist.search_speedup >= enough

    def _finalist(self, timed: TimedPlan) -> _Finalist | None:
        try:
            return _Finalist(timed.plan, self.make_engine(timed.plan), timed, self._is_whole(timed))
        except (SelfspecError, *OUT_OF_MEMORY):
            return None  # it ran in the study; if it cannot now, another one is chosen

    def _ready(self, finalists: list[_Finalist]) -> list[_Finalist]:
        """Those that warm up, of rivals; where none does, the best one, whose failure the verdict then reports."""
        if len(finalists) < 2:
            return finalists
        prompt, settings = self.head_to_head.prompts[0], self.head_to_head.settings
        return [each for each in finalists if not_ready(each.arm, prompt, settings) is None] or finalists[:1]

    def _measure(self, groups: list[list[_Finalist]]) -> Standings:
        """Measures plans that have rivals."""
        if not groups:
            return Standings(baseline="plain", blocks=(), contenders=())
        plain = EngineArm("plain", self.make_engine(PLAIN))
        warm_up(plain.engine, self.head_to_head.prompts[0], self.head_to_head.settings)
        return self.head_to_head.measure([[each.arm for each in group] for group in groups], baseline=plain)

    def _chosen(self, step: StepName, finalists: list[_Finalist], standings: Standings) -> Selected:
        """The fastest by all evidence; memory that a user would notice is worth the tolerance, and nothing else is."""
        standing = [name for group in standings.contenders for name in group]
        contenders = [each for each in finalists if each.arm.name in standing] or finalists[:1]
        first = max(contenders, key=lambda each: standings.speedup(each.arm.name) or 0.0)
        able = [each for each in finalists if each.arm.name not in standings.failed]
        measured = [each for each in able if standings.num_blocks(each.arm.name, first.arm.name)] or [first]
        speed = {each.arm.name: self._relative_speed(each, first, standings, contenders) for each in measured}
        enough = (1 - self.tolerance) * max(speed.values())
        good = [each for each in measured if speed[each.arm.name] >= enough]
        least = min(each.engine.extra_bytes for each in good) + ZERO_STEP_SHARE * self.weight_bytes
        best = max((each for each in good if each.engine.extra_bytes <= least), key=lambda each: speed[each.arm.name])
        anew = standings.speedup(best.arm.name)
        return Selected(
            step=step,
            plan=best.plan,
            extra_bytes=best.engine.extra_bytes,
            speedup=best.search_speedup if anew is None else anew,
        )

    def _relative_speed(
        self, plan: _Finalist, other: _Finalist, standings: Standings, contenders: Sequence[_Finalist]
    ) -> float:
        """A finalist's speed over a contender's.

        Where head to head has not settled it, the search counts too, each weighed by its prompts' runs: it favours both
        alike, since both have come through it, so it tells them apart as well as what was measured after it.
        """
        anew = standings.speedup(plan.arm.name, over=other.arm.name)
        if anew is None or plan is other:
            return 1.0
        if plan not in contenders:
            return anew
        met = {pair.prompt_id for pair in standings.pairs(plan.arm.name, over=other.arm.name)}
        anew = self._on_all(anew, plan, other, met)
        searched = {prompt.prompt_id for prompt in self.head_to_head.prompts[: self.num_timed]}
        before = self._on_all(plan.search_speedup / other.search_speedup, plan, other, searched)
        num_anew = standings.num_blocks(plan.arm.name, other.arm.name)
        num_before = min(each.timed.num_prompts * each.timed.num_runs for each in (plan, other))
        return math.exp((num_anew * math.log(anew) + num_before * math.log(before)) / (num_anew + num_before))

    def _on_all(self, ratio: float, plan: _Finalist, other: _Finalist, prompt_ids: Collection[str]) -> float:
        """A ratio measured on some prompts, as it would be on all: the predicted ratios tell how the rest differs."""
        everything = {prompt.prompt_id for prompt in self.head_to_head.prompts}
        if everything <= set(prompt_ids):
            return ratio
        foreseen = [self.foresee(each.plan, ids) for ids in (everything, prompt_ids) for each in (plan, other)]
        if any(each is None for each in foreseen):
            return ratio
        all_plan, all_other, some_plan, some_other = (each or 1.0 for each in foreseen)
        return ratio * (all_plan / all_other) / (some_plan / some_other)
