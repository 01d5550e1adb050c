"""Puts measured costs into a plan, so that its controller can tell gain from loss by counting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from selfspec_runtime.controllers.costs import RoundCosts

if TYPE_CHECKING:
    from selfspec_calibrate.cost_model import CostModel
    from selfspec_runtime.drafts.registry import AnySourceSpec

#: Digits kept: costs are measured to a per cent at best, and plans are compared and read by people.
DIGITS = 3


def round_costs(cost: CostModel, source: AnySourceSpec | None, *, max_draft_tokens: int, context: int) -> RoundCosts:
    """What a source's rounds cost, in plain steps.

    Args:
        cost: Seconds of passes on this machine.
        source: What drafts.
        max_draft_tokens: Longest draft to give a cost for.
        context: Positions in the cache; a typical number, since the plan holds one table.

    Raises:
        PlanError: A quantised source, of which nothing was measured.
    """
    plain_s = cost.pass_s(1, context) + cost.host_s
    verify_s = [cost.verify_s(source, n, context) + cost.host_s for n in range(1, max_draft_tokens + 1)]
    return RoundCosts(
        draft_cost=round(cost.draft_pass_s(source, context) / plain_s, DIGITS),
        verify_cost=tuple(max(round(each / plain_s, DIGITS), 10**-DIGITS) for each in verify_s),
    )
