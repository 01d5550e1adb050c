"""Search spaces for tests."""

from __future__ import annotations

from typing import Any

from selfspec_calibrate.search_space import SearchSpace
from selfspec_calibrate.sensitivity import Sensitivity
from selfspec_calibrate.settings import FAMILIES


def some_space(num_layers: int = 12, **changes: Any) -> SearchSpace:
    """A space with everything in it: later layers matter less, attentions less than MLPs, the ends most."""
    ends = (0, num_layers - 1)
    attention = [0.5 if layer in ends else 0.90 + 0.09 * layer / num_layers for layer in range(num_layers)]
    mlp = [0.3 if layer in ends else 0.80 + 0.15 * layer / num_layers for layer in range(num_layers)]
    given: dict[str, Any] = {
        "num_layers": num_layers,
        "families": FAMILIES,
        "max_draft_tokens": 8,
        "linear_exits": tuple(range(num_layers // 2, num_layers)),
        "sensitivity": Sensitivity(tuple(attention), tuple(mlp)),
        "quantized_available": True,
        "attention_s": 0.4,
        "mlp_s": 0.6,
    }
    return SearchSpace(**{**given, **changes})
