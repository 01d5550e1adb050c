"""Held-out measurements as rows of the calibration file: one for each kind of prompt, then one for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from selfspec_calibrate.pair import PromptPair, by_prompt, speedup, speedup_interval
from selfspec_runtime.calibration import KindResult, TimeSplit
from selfspec_runtime.stats import AcceptanceStats, PhaseSeconds

if TYPE_CHECKING:
    from selfspec_calibrate.measurement import RunMeasurement

ALL_KINDS = "all"


@dataclass(frozen=True, kw_only=True)
class PromptRuns:
    """All runs of one held-out prompt that concern one plan.

    Attributes:
        kind: Kind of the prompt.
        plain: Runs of plain decoding.
        plan: Runs of the plan.
        stock: Runs of ``transformers`` generate; none if it was not measured.
        question: What the prompt is a turn of; turns of one question count as one prompt.
        margin: Top-two margin where the plan's greedy text parts from plain decoding's, or None if it does not.
    """

    kind: str
    plain: Sequence[RunMeasurement]
    plan: Sequence[RunMeasurement]
    question: str
    stock: Sequence[RunMeasurement] = ()
    margin: float | None = None

    @property
    def pair(self) -> PromptPair:
        """The plan against plain decoding."""
        return PromptPair.of(self.plain, self.plan, prompt_id=self.question)

    @property
    def is_identical(self) -> bool:
        """Whether plan and plain decoding say the same."""
        return self.plain[0].token_ids == self.plan[0].token_ids


def result_rows(prompts: Sequence[PromptRuns], sampling: str) -> tuple[KindResult, ...]:
    """Makes the rows.

    Args:
        prompts: One entry per held-out prompt, later turns of a question apart.
        sampling: How tokens were chosen, in words.

    Returns:
        A row for each kind, by name, and the row "all"; none for a kind of which nothing could be timed.
    """
    kinds = sorted({each.kind for each in prompts})
    groups = [(kind, [each for each in prompts if each.kind == kind]) for kind in kinds]
    rows = (_row(kind, group, sampling) for kind, group in [*groups, (ALL_KINDS, list(prompts))])
    return tuple(row for row in rows if row is not None)


def _row(kind: str, prompts: list[PromptRuns], sampling: str) -> KindResult | None:
    timed = [each for each in prompts if each.pair.is_timed]
    interval = speedup_interval(by_prompt(each.pair for each in timed))
    if interval is None:
        return None
    plan_runs = [run for each in timed for run in each.plan]
    stats = _total_stats(plan_runs)
    margins = [each.margin for each in prompts if each.margin is not None]
    return KindResult(
        kind=kind,
        sampling=sampling,
        num_prompts=len(_questions(timed)),
        plain_tokens_per_s=_rate([run for each in timed for run in each.plain]) or 0.0,
        plan_tokens_per_s=_rate(plan_runs) or 0.0,
        stock_tokens_per_s=_stock_rate(timed),
        speedup=interval,
        speedup_over_stock=_speedup_over_stock(timed),
        tokens_per_round=stats.mean_acceptance_length or 1.0,
        acceptance_rate=stats.acceptance_rate,
        time=_time_split(plan_runs),
        time_to_first_token_s=median(run.time_to_first_token_s for run in plan_runs),
        num_identical=sum(all(turn.is_identical for turn in turns) for turns in _questions(timed)),
        largest_divergence_margin=max(margins, default=None),
    )


def _questions(prompts: list[PromptRuns]) -> list[list[PromptRuns]]:
    """The turns of each question."""
    found: dict[str, list[PromptRuns]] = {}
    for each in prompts:
        found.setdefault(each.question, []).append(each)
    return list(found.values())


def _rate(runs: Sequence[RunMeasurement]) -> float | None:
    seconds = sum(run.decode_s for run in runs)
    return sum(run.num_tokens for run in runs) / seconds if seconds > 0 else None


def _stock_rate(prompts: list[PromptRuns]) -> float | None:
    """Only where transformers got through all prompts: a rate over some of them compares with nothing."""
    if not all(each.stock for each in prompts):
        return None
    return _rate([run for each in prompts for run in each.stock])


def _speedup_over_stock(prompts: list[PromptRuns]) -> float | None:
    if not all(each.stock for each in prompts):
        return None
    return speedup(by_prompt(PromptPair.of(each.stock, each.plan, prompt_id=each.question) for each in prompts))


def _total_stats(runs: Sequence[RunMeasurement]) -> AcceptanceStats:
    total = AcceptanceStats()
    for run in runs:
        total.add(run.stats)
    return total


def _time_split(runs: Sequence[RunMeasurement]) -> TimeSplit:
    total = PhaseSeconds()
    for run in runs:
        total.add(run.seconds)
    return TimeSplit(
        draft=total.draft / total.decode, verify=total.verify / total.decode, host=total.host / total.decode
    )
