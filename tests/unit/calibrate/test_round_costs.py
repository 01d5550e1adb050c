"""Costs that a plan carries are those of the cost model, in plain steps."""

from __future__ import annotations

from typing import Any, cast

import pytest
from tests.support.planted_costs import PlantedCosts

from selfspec_calibrate.cost_model import CostModel
from selfspec_calibrate.round_costs import round_costs
from selfspec_runtime.controllers.fallback import FallbackController
from selfspec_runtime.drafts.early_exit import EarlyExitSpec
from selfspec_runtime.plan import DraftPlan

COST = cast("CostModel", PlantedCosts(num_layers=10, host_s=0.0, row_s=0.1))
EXIT = EarlyExitSpec(exit_layer=5)


def test_costs_are_in_plain_steps() -> None:
    costs = round_costs(COST, EXIT, max_draft_tokens=3, context=0)
    assert costs.draft_cost == pytest.approx(0.2 + 0.8 / 2)
    assert costs.verify_cost == (1.1, 1.2, 1.3)


def test_the_hosts_work_is_part_of_every_step() -> None:
    busy = cast("CostModel", PlantedCosts(num_layers=10, host_s=1.0, row_s=0.1))
    costs = round_costs(busy, EXIT, max_draft_tokens=1, context=0)
    assert costs.draft_cost == pytest.approx(0.3)
    assert costs.verify_cost == (1.05,)


@pytest.mark.parametrize("controller", [{"kind": "fixed"}, {"kind": "confidence"}, {"kind": "adaptive_threshold"}])
def test_a_plan_with_costs_falls_back(controller: dict[str, Any]) -> None:
    costs = round_costs(COST, EXIT, max_draft_tokens=8, context=0).model_dump(mode="json")
    guarded = DraftPlan.model_validate({"source": EXIT.model_dump(), "controller": {**controller, "costs": costs}})
    assert isinstance(guarded.controller.build(), FallbackController)
    assert DraftPlan.model_validate_json(guarded.model_dump_json()) == guarded
