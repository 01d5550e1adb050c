"""The order of plans by what was measured of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from selfspec_runtime.calibration import TimedPlan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from selfspec_calibrate.trial_book import PlanEvidence

WORTHWHILE_GAIN = 0.005
"""Smaller improvements are noise."""


def ranked(evidence: Iterable[PlanEvidence]) -> list[PlanEvidence]:
    """Plans that draft and were timed, best first: those that went through all prompts before those that did not."""
    timed = [(each, each.speedup) for each in evidence if not each.plan.is_plain and each.outcome != "failed"]
    found = [(each.outcome == "complete", value, each) for each, value in timed if value is not None]
    return [each for _, _, each in sorted(found, key=lambda item: item[:2], reverse=True)]


def best_complete(evidence: Iterable[PlanEvidence]) -> PlanEvidence | None:
    """The fastest plan that went through all prompts and is faster than plain decoding, or None."""
    complete = [each for each in ranked(evidence) if each.outcome == "complete"]
    return complete[0] if complete and (complete[0].speedup or 0.0) > 1.0 else None


def num_fruitless(evidence: Iterable[PlanEvidence]) -> int:
    """How many neighbours were settled since one last brought a worthwhile gain.

    Args:
        evidence: In the order in which the plans were first tried.
    """
    best, count = 0.0, 0
    for each in evidence:
        value = (each.speedup or 0.0) if each.outcome == "complete" else 0.0
        gained = value > best * (1 + WORTHWHILE_GAIN)
        count = 0 if gained or each.origin != "neighbour" else count + 1
        best = max(best, value)
    return count


def timed_plans(evidence: Iterable[PlanEvidence], *, num_prompts: int) -> tuple[TimedPlan, ...]:
    """The results as they stand in the calibration file, best first.

    Args:
        evidence: What is known of each plan, in the order in which the plans were first tried.
        num_prompts: Search prompts, on all of which plain decoding counts as timed.
    """
    known = list(evidence)
    places = {each.plan.model_dump_json(): place for place, each in enumerate(known)}
    drafting = ranked(known)
    whole = [
        *(each for each in known if each.plan.is_plain),
        *(each for each in drafting if each.outcome == "complete"),
    ]
    first = sorted(whole, key=lambda each: each.speedup or 0.0, reverse=True)
    rest = [each for each in drafting if each.outcome != "complete"]
    return tuple(
        TimedPlan(
            plan=each.plan,
            predicted_speedup=each.predicted,
            measured_speedup=each.speedup or 0.0,
            num_prompts=num_prompts if each.plan.is_plain else len(each.pairs),
            num_runs=each.num_runs,
            order=places[each.plan.model_dump_json()],
            decode_s=sum(pair.plain_s + pair.plan_s for pair in each.pairs.values()),
        )
        for each in [*first, *rest]
    )
