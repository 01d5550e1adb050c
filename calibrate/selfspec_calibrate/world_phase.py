"""What families of drafts are told about a loaded model and its predictions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from selfspec_calibrate.family_world import FamilyWorld
from selfspec_calibrate.interleave import OUT_OF_MEMORY, as_selfspec_error
from selfspec_calibrate.plan_parts import replayed_core
from selfspec_calibrate.roster import Roster, roster_of
from selfspec_calibrate.round_costs import round_costs
from selfspec_calibrate.trace import middle_context
from selfspec_runtime.drafts.fewer_experts import routed_experts
from selfspec_runtime.errors import SelfspecError
from selfspec_runtime.families import text_config

if TYPE_CHECKING:
    from typing import Any

    from selfspec_calibrate.predicted_phase import Forecast
    from selfspec_calibrate.session import Session
    from selfspec_runtime.plan import DraftPlan


def family_world(session: Session, forecast: Forecast) -> FamilyWorld:
    """Puts together what the table of families asks for."""
    context = middle_context(forecast.traces)

    def costs_of(plan: DraftPlan) -> dict[str, Any] | None:
        longest = forecast.space.max_draft_tokens
        if plan.is_plain or not replayed_core(plan):
            return None
        costs = round_costs(forecast.cost, plan.source, max_draft_tokens=longest, context=context)
        return costs.model_dump(mode="json")

    experts = [routed_experts(session.target, layer) for layer in session.target.full.modules]
    return FamilyWorld(
        space=forecast.space,
        predictions=forecast.study.plans,
        costs_of=costs_of,
        num_experts=max(experts) or None,
        vocab_size=int(text_config(session.loaded.model.config).vocab_size),
        array_names=frozenset(session.arrays),
        can_quantize=forecast.space.quantized_available,
    )


def family_roster(session: Session, forecast: Forecast, *, everything: bool = False) -> Roster:
    """What is to be timed beside the predicted leaders.

    Args:
        session: The loaded model.
        forecast: What was predicted.
        everything: Also families that the cheap analysis leaves no chance, as a comparison does.
    """
    world = family_world(session, forecast)
    refused = partial(refusal, session)
    return roster_of(world, families=session.settings.families, everything=everything, refusal=refused)


def refusal(session: Session, plan: DraftPlan) -> str | None:
    """Why no engine can be made for a plan, or None."""
    try:
        session.engine(plan)
    except (SelfspecError, *OUT_OF_MEMORY) as error:
        return str(as_selfspec_error(error))
    return None
