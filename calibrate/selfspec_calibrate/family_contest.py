"""Which plan stands for its family, by what was timed on search prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfspec_calibrate.draft_families import TABLE, DraftFamily, family_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from selfspec_runtime.calibration import TimedPlan

NOT_TIMED = "the time was up before a plan of it was timed"


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A family in a comparison.

    Attributes:
        family: The family.
        best: Its best timed plan, or None.
        num_timed: Plans of it that were timed.
        search_s: Seconds that timing them took.
        left_out: Why it has none, or None.
    """

    family: DraftFamily
    best: TimedPlan | None
    num_timed: int
    search_s: float
    left_out: str | None


def contestants(timed: Sequence[TimedPlan], left_out: Mapping[str, str], *, num_prompts: int) -> tuple[Contestant, ...]:
    """Picks each family's best plan: one that went through all prompts before one that was given up.

    Args:
        timed: Everything that was timed.
        left_out: Reasons by title, of families that have no plans.
        num_prompts: Search prompts that plans are timed on.
    """
    return tuple(_contestant(family, timed, left_out, num_prompts) for family in TABLE)


def _contestant(
    family: DraftFamily, timed: Sequence[TimedPlan], left_out: Mapping[str, str], num_prompts: int
) -> Contestant:
    own = [each for each in timed if family_of(each.plan) is family]
    best = max(own, key=lambda each: (each.num_prompts >= num_prompts, each.measured_speedup), default=None)
    return Contestant(
        family=family,
        best=best,
        num_timed=len(own),
        search_s=sum(each.decode_s for each in own),
        left_out=None if own else left_out.get(family.title, NOT_TIMED),
    )
