"""Costs of a plan's rounds in plain steps, for controllers that tell gain from loss by counting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from selfspec_calibrate.plan_parts import replayed_core
from selfspec_calibrate.prediction import pass_spec
from selfspec_runtime.controllers.costs import RoundCosts

if TYPE_CHECKING:
    from selfspec_calibrate.cost_model import CostModel
    from selfspec_runtime.plan import DraftPlan


def round_costs(plan: DraftPlan, cost: CostModel, *, context: int, max_draft_tokens: int) -> RoundCosts | None:
    """What drafting and verifying cost, relative to a plain step with the host's work in it.

    Args:
        plan: A plan that drafts.
        cost: Seconds of passes.
        context: Positions in the cache; the middle of what is decoded.
        max_draft_tokens: Draft tokens up to which verifications are listed.

    Returns:
        None for plans whose passes were not measured.
    """
    if plan.is_plain or not replayed_core(plan):
        return None
    spec, plain_s = pass_spec(plan), cost.pass_s(1, context) + cost.host_s
    drafting_s = 0.0 if spec is None else cost.draft_pass_s(spec, context)
    verifying = [cost.verify_s(spec, drafts, context) + cost.host_s for drafts in range(1, max_draft_tokens + 1)]
    return RoundCosts(
        draft_cost=round(drafting_s / plain_s, 4),
        verify_cost=tuple(round(seconds / plain_s, 4) for seconds in verifying),
    )
