"""A model that draft families are asked about, with what was predicted for it."""

from __future__ import annotations

from typing import Any

from tests.support.planted_costs import PlantedCosts
from tests.support.planted_space import some_space

from selfspec_calibrate.family_world import FamilyWorld
from selfspec_calibrate.prediction import Prediction
from selfspec_calibrate.round_costs import round_costs
from selfspec_runtime.drafts.ngram import NgramSpec
from selfspec_runtime.plan import DraftPlan

NUM_LAYERS = 12
SKIPS = {"kind": "layer_skip", "skip": {"attention": [3, 4, 5], "mlp": [6]}}
EXIT = {"kind": "early_exit", "exit_layer": 9}
NF4 = {"kind": "quantized"}
NGRAM = {"kind": "ngram"}
FIRST = {"kind": "ngram_first", "then": SKIPS}
SPEEDS: tuple[tuple[dict[str, Any], float], ...] = (
    (FIRST, 1.4),
    (NGRAM, 1.3),
    (NF4, 1.2),
    (SKIPS, 1.1),
    ({**EXIT, "head": "linear"}, 1.0),
    (EXIT, 0.8),
)


class LookupCosts(PlantedCosts):
    """Costs that know what a lookup costs, which is nothing, and what is meant by lookups before passes."""

    def draft_pass_s(self, spec: Any, context: int) -> float:
        passes = getattr(spec, "then", spec)
        return 0.0 if isinstance(passes, NgramSpec) else super().draft_pass_s(passes, context)


def plan_of(source: dict[str, Any], **controller: Any) -> DraftPlan:
    return DraftPlan.model_validate({"source": source, **({"controller": controller} if controller else {})})


def some_world(*speeds: tuple[dict[str, Any], float], **changes: Any) -> FamilyWorld:
    """A world in which everything is there but routed experts; give speeds to replace the predictions."""
    costs = LookupCosts(NUM_LAYERS)

    def costs_of(plan: DraftPlan) -> dict[str, Any] | None:
        found = round_costs(costs, plan.source, max_draft_tokens=8, context=100)  # type: ignore[arg-type]
        return found.model_dump(mode="json")

    given: dict[str, Any] = {
        "space": some_space(NUM_LAYERS),
        "predictions": [
            Prediction(plan_of(source), speed, 2.0, 0.5, 1.0, 1.0 / speed) for source, speed in speeds or SPEEDS
        ],
        "costs_of": costs_of,
        "vocab_size": 1000,
        "array_names": frozenset({"vocabulary_ranks"}),
        "can_quantize": True,
    }
    return FamilyWorld(**{**given, **changes})
