"""Held-out runs of many plans as the rows of a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfspec_calibrate.comparison import CalibratedResult, FamilyResult, MeasuredPlan
from selfspec_calibrate.pair import speedup_interval
from selfspec_calibrate.plan_parts import sources_in
from selfspec_runtime.drafts.dynamic_skips import DynamicSkipSpec
from selfspec_runtime.memory import step_of
from selfspec_runtime.plan import PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from selfspec_calibrate.family_contest import Contestant
    from selfspec_calibrate.held_out import HeldOutRuns
    from selfspec_calibrate.selection import Selected
    from selfspec_runtime.plan import DraftPlan


@dataclass(frozen=True, kw_only=True)
class ComparisonRows:
    """Makes rows.

    Attributes:
        runs: What was measured on held-out prompts.
        extra_bytes: What a plan holds beyond model and cache.
        weight_bytes: The model's weights.
    """

    runs: HeldOutRuns
    extra_bytes: Callable[[DraftPlan], int]
    weight_bytes: int

    def families(self, contestants: Sequence[Contestant]) -> tuple[FamilyResult, ...]:
        """One row per family: those with a plan first, the fastest first."""
        rows = [self._family(each) for each in contestants]
        rows.sort(key=_speed, reverse=True)
        fastest = rows[0].family if rows and _speed(rows[0]) > 0 else None
        return tuple(row.model_copy(update={"is_fastest": row.family == fastest}) for row in rows)

    def calibrated(
        self, selected: Sequence[Selected], families: Sequence[FamilyResult]
    ) -> tuple[CalibratedResult, ...]:
        """One row per step of memory for which a plan was chosen."""
        return tuple(self._calibrated(each, families) for each in selected if not each.plan.is_plain)

    def measured(self, plan: DraftPlan) -> MeasuredPlan:
        """A plan's results."""
        held = self.extra_bytes(plan)
        failure = self.runs.failure(plan)
        return MeasuredPlan(
            plan=plan,
            extra_bytes=held,
            extra_share=held / self.weight_bytes,
            draft_cost=None if failure else self._draft_cost(plan),
            choosing_share=None if failure else self._choosing_share(plan),
            results=self.runs.rows(plan),
            failure=failure,
        )

    def _family(self, contestant: Contestant) -> FamilyResult:
        best = contestant.best
        return FamilyResult(
            family=contestant.family.name,
            title=contestant.family.title,
            best=None if best is None else self.measured(best.plan),
            left_out=contestant.left_out,
            num_timed=contestant.num_timed,
            search_s=contestant.search_s,
            search_speedup=None if best is None else best.measured_speedup,
        )

    def _calibrated(self, selected: Selected, families: Sequence[FamilyResult]) -> CalibratedResult:
        allowed = [row for row in families if row.best is not None and self._fits(row.best, selected)]
        fastest = max(allowed, key=_speed, default=None)
        measured = self.measured(selected.plan)
        rival = None if fastest is None or fastest.best is None else fastest.best.plan
        both = rival is not None and measured.failure is None and rival != selected.plan
        return CalibratedResult(
            step=selected.step,
            measured=measured,
            fastest_family=None if fastest is None else fastest.family,
            against_fastest=speedup_interval(self.runs.pairs(selected.plan, against=rival or PLAIN)) if both else None,
        )

    def _fits(self, measured: MeasuredPlan, selected: Selected) -> bool:
        step = step_of(extra_bytes=measured.extra_bytes, weight_bytes=self.weight_bytes)
        return measured.failure is None and (step == "zero" or selected.step != "zero")

    def _draft_cost(self, plan: DraftPlan) -> float | None:
        """Seconds per draft token over seconds of a plain step."""
        drafting = [run for _, runs in self.runs.runs(plan) for run in runs]
        plain = [run for _, runs in self.runs.runs(PLAIN) for run in runs]
        drafted, steps = sum(run.stats.num_draft_tokens for run in drafting), sum(run.num_tokens for run in plain)
        plain_s = sum(run.decode_s for run in plain)
        if not drafted or not steps or not plain_s:
            return None
        return sum(run.seconds.draft for run in drafting) / drafted / (plain_s / steps)

    def _choosing_share(self, plan: DraftPlan) -> float | None:
        """0 where answers ended before the source had chosen anything; None for sources that choose nothing."""
        if not any(isinstance(source, DynamicSkipSpec) for source in sources_in(plan)):
            return None
        runs = [run for _, found in self.runs.runs(plan) for run in found]
        choosing_s, decode_s = sum(run.choosing_s for run in runs), sum(run.decode_s for run in runs)
        return choosing_s / decode_s if decode_s else None


def _speed(row: FamilyResult) -> float:
    overall = None if row.best is None else row.best.overall
    return 0.0 if overall is None else overall.speedup.value
