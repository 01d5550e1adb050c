"""Controllers on models whose right answer is known, decoding for real; costs are counted, in plain steps."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from tests.support.tiny_models import hopeless, planted, prompt_ids, tiny_model

from selfspec_runtime.controllers.costs import RoundCosts
from selfspec_runtime.decoder import RunRecord
from selfspec_runtime.engine import Engine
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.plan import DraftPlan
from selfspec_runtime.target import Target

COSTS = RoundCosts(draft_cost=0.5, verify_cost=(1.02, 1.04, 1.06, 1.08))
CONTROLLERS: dict[str, dict[str, Any]] = {
    "fixed": {"kind": "fixed", "num_draft_tokens": 4},
    "confidence": {"kind": "confidence", "num_draft_tokens": 6, "draft_confidence_threshold": 0.0},
    "adaptive_threshold": {"kind": "adaptive_threshold", "draft_confidence_threshold": 0.0},
    "accepted_length": {"kind": "accepted_length"},
    "thompson": {"kind": "thompson"},
}
PROMPT = prompt_ids(10)


@cache
def good() -> Target:
    """Its exit after layer 2 equals the model."""
    return Target(planted(tiny_model("llama"), exit_layer=2))


@cache
def bad() -> Target:
    """Nothing guesses it."""
    return Target(hopeless(tiny_model("llama")))


@cache
def plain(num_tokens: int) -> tuple[int, ...]:
    return Engine(bad()).generate(PROMPT, GenerationSettings(max_new_tokens=num_tokens)).token_ids


def counted(target: Target, controller: str, num_tokens: int, **changes: Any) -> tuple[float, int, tuple[int, ...]]:
    """Cost in plain steps, tokens that it brought, and what was said."""
    entry = {**CONTROLLERS[controller], "costs": COSTS.model_dump(), **changes}
    plan = DraftPlan.model_validate({"source": {"kind": "early_exit", "exit_layer": 2}, "controller": entry})
    record = RunRecord()
    steps = list(Engine(target, plan=plan).stream(PROMPT, GenerationSettings(max_new_tokens=num_tokens), record=record))
    cost = sum(COSTS.of_round(step.num_drafted) for step in steps[1:])
    said = tuple(token for step in steps for token in step.token_ids)
    assert record.stats.num_draft_passes == record.stats.num_draft_tokens
    return cost, len(said) - 1, said


@pytest.mark.parametrize("controller", CONTROLLERS)
def test_a_draft_that_equals_the_model_wins(controller: str) -> None:
    cost, tokens, _ = counted(good(), controller, 200)
    assert tokens / cost > 1.4


@pytest.mark.parametrize("controller", CONTROLLERS)
def test_a_hopeless_draft_is_switched_off_and_nothing_is_said_otherwise(controller: str) -> None:
    cost, tokens, said = counted(bad(), controller, 450)
    assert cost < 1.05 * tokens
    assert said == plain(450)


def test_without_the_fallback_it_loses() -> None:
    cost, tokens, _ = counted(bad(), "fixed", 100, fallback=False)
    assert cost > 2.0 * tokens
