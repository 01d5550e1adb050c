"""Which plans of families that are not predicted are to be timed, and which families are left out and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfspec_calibrate.draft_families import TABLE, DraftFamily, family_of
from selfspec_calibrate.settings import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence

    from selfspec_calibrate.family_world import FamilyWorld
    from selfspec_runtime.plan import DraftPlan

NOT_ASKED = "it was not asked for"
NO_PLAN = "no plan of it fits this model"
NOT_PREDICTED = "the predicted study found no plan of it"
NOT_WORTH_IT = "drafts by the model's own layers are predicted to lose by far, and it learns on top of them"

#: Plans per family that a calibration times; a comparison times all that are proposed.
PER_FAMILY = 1


def _never(plan: DraftPlan) -> str | None:
    del plan
    return None


@dataclass(frozen=True)
class Roster:
    """What is timed beside the predicted leaders.

    Attributes:
        plans: In the order of the families' table, all different.
        left_out: For each family without a plan its title and the reason.
    """

    plans: tuple[DraftPlan, ...]
    left_out: dict[str, str]

    def unmet(self, families: Iterable[str]) -> tuple[str, ...]:
        """One sentence for each wish that comes to nothing, for users who named their families.

        Args:
            families: Names that the user gave, as ``--families`` spells them.
        """
        asked = dict.fromkeys(families)
        if asked.keys() >= set(FAMILIES):
            return ()  # nobody named any
        own = {name: [family for family in TABLE if family.option == name] for name in asked}
        missing = {name: [self.left_out.get(family.title) for family in found] for name, found in own.items()}
        return tuple(
            f"{name} is left out: {(why[-1] or '').rstrip('.')}." for name, why in missing.items() if None not in why
        )


def roster_of(
    world: FamilyWorld,
    *,
    families: Container[str],
    everything: bool = False,
    refusal: Callable[[DraftPlan], str | None] = _never,
) -> Roster:
    """Asks each family for its plans.

    Args:
        world: The model and what was predicted for it.
        families: Names that the user allows.
        everything: Also families that the cheap analysis leaves no chance, and all plans of each.
        refusal: Says why a plan cannot be run on this model, or None.
    """
    plans: dict[DraftPlan, None] = {}
    left_out: dict[str, str] = {}
    for family in TABLE:
        found, reason = _asked(family, world, families, everything=everything)
        refused = {plan: why for plan in found if (why := refusal(plan)) is not None}
        found = [plan for plan in found if plan not in refused]
        if refused and not found:
            reason = next(iter(refused.values()))
        plans |= dict.fromkeys(found)
        if reason is not None:
            left_out[family.title] = reason
    return Roster(tuple(plans), left_out)


def _asked(
    family: DraftFamily, world: FamilyWorld, families: Container[str], *, everything: bool
) -> tuple[Sequence[DraftPlan], str | None]:
    """A family's plans, or why there are none."""
    if family.option not in families:
        return (), NOT_ASKED
    reason = family.absent(world)
    if reason is not None:
        return (), reason
    if family.plans is None:
        predicted = any(family_of(each.plan) is family for each in world.predictions)
        return (), None if predicted else NOT_PREDICTED
    if not everything and not family.is_worth_timing(world):
        return (), NOT_WORTH_IT
    plans = [plan for plan in family.plans(world) if family_of(plan) is family]
    return (plans if everything else plans[:PER_FAMILY]), None if plans else NO_PLAN
