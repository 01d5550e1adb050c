"""Plans of the sources that choose their skip set while decoding, and a model made for them to find it."""

from __future__ import annotations

from functools import cache
from typing import Any

from tests.support.tiny_models import build_model, hopeless, planted_skip, tiny_config

from selfspec_runtime.controllers.costs import RoundCosts
from selfspec_runtime.layer_skip import LayerSkipSet
from selfspec_runtime.plan import DraftPlan
from selfspec_runtime.target import Target

NUM_LAYERS = 8
IDLE = LayerSkipSet.whole({2, 3, 5, 6})
"""Layers of the planted model that say nothing; neither a source's first choice nor evenly spread."""

EAGER: dict[str, Any] = {"interval": 2, "max_overhead": 1000.0}
"""Chooses as often as it can, whatever it costs."""

#: For models of four layers: sources that change their minds within a few rounds.
DYNAMIC_SOURCES: dict[str, dict[str, Any]] = {
    "swift": {"kind": "swift", "skip": {"attention": [1], "mlp": [3]}, "window": 4, "max_score": 1.0, **EAGER},
    "clasp": {"kind": "clasp", "num_skipped": 2, **EAGER},
    "conf_layers": {"kind": "conf_layers", "skip_ratio": 0.4, "window": 6, "max_score": 1.0, **EAGER},
}

#: For the planted model: passes count the same however many rows they have, as on a machine that is bound by weights.
FLAT_SOURCES: dict[str, dict[str, Any]] = {
    "swift": {
        "kind": "swift",
        "skip": {"attention": [1, 2, 5], "mlp": [3, 4, 6]},
        "window": 12,
        "max_score": 1.0,
        "max_overhead": 0.2,
        "row_cost": 0.0,
    },
    "clasp": {"kind": "clasp", "num_skipped": 4, "interval": 4, "row_cost": 0.0},
    "conf_layers": {"kind": "conf_layers", "skip_ratio": 0.6, "window": 8, "interval": 6, "row_cost": 0.0},
}

DRAFT_COST = 0.5
"""Of a pass that leaves half of the layers out, in plain steps."""


@cache
def planted_target(scale: float = 0.4) -> Target:
    """Half of its layers say nothing, and the other inner ones so little that leaving one out is not fatal."""
    model = build_model(tiny_config("llama", num_hidden_layers=NUM_LAYERS))
    model = planted_skip(model, attention=[1, 4], mlp=[1, 4], scale=scale)
    return Target(planted_skip(model, attention=IDLE.attention, mlp=IDLE.mlp))


@cache
def hopeless_target() -> Target:
    """Nothing guesses it."""
    return Target(hopeless(build_model(tiny_config("llama", num_hidden_layers=NUM_LAYERS))))


def dynamic_plan(source: dict[str, Any], *, num_draft_tokens: int = 4, falls_back: bool = False) -> DraftPlan:
    """The source with a fixed number of drafts, which may fall back to plain decoding while they lose."""
    costs = RoundCosts(draft_cost=DRAFT_COST).model_dump(mode="json") if falls_back else None
    controller = {"kind": "fixed", "num_draft_tokens": num_draft_tokens, "costs": costs}
    return DraftPlan.model_validate({"source": source, "controller": controller})
