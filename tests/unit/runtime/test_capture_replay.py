"""On real tensors: the same operators at any length, and replayed operators give what the step gives."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from tests.support.capture_checks import require_no_host_reads, require_replayable, require_same_operators
from tests.support.device_steps import EXPERT_FAMILIES, SAMPLING, STEPS, StepWorld, step_world
from tests.support.replay_recorder import torch_only  # noqa: F401
from tests.support.tiny_models import FAMILIES, attention_of, build_model, tiny_config, tiny_model

pytestmark = pytest.mark.usefixtures("torch_only")
CAPTURED = [family for family in FAMILIES if family != "mpt"]


@cache
def world(family: str) -> StepWorld:
    if family in EXPERT_FAMILIES:
        model = build_model(tiny_config(family, experts_implementation="batched_mm"), attention=attention_of(family))
        model.set_experts_implementation("batched_mm")
        return step_world(model)
    return step_world(tiny_model(family))


@pytest.mark.parametrize("family", CAPTURED)
def test_a_round_is_the_same_operators_at_any_length(family: str) -> None:
    steps = world(family).steps()
    require_same_operators(world(family), lambda: STEPS["exit_round"](steps))


@pytest.mark.parametrize("family", CAPTURED)
def test_a_replayed_round_is_the_round(family: str) -> None:
    steps = world(family).steps()
    require_replayable(world(family), lambda: STEPS["exit_round"](steps))


@pytest.mark.parametrize("step", [step for step in STEPS if step != "exit_round"])
def test_so_is_every_step(step: str) -> None:
    steps = world("llama").steps(confidence=True)
    require_no_host_reads(world("llama"), lambda: STEPS[step](steps))
    require_same_operators(world("llama"), lambda: STEPS[step](steps))
    require_replayable(world("llama"), lambda: STEPS[step](steps))


@pytest.mark.parametrize("sampling", ["rejection", "match"])
def test_so_is_a_round_that_draws(sampling: str) -> None:
    steps = world("llama").steps(sampling=SAMPLING[sampling])
    require_no_host_reads(world("llama"), lambda: STEPS["skip_round"](steps))
    require_same_operators(world("llama"), lambda: STEPS["skip_round"](steps))
    require_replayable(world("llama"), lambda: STEPS["skip_round"](steps))


def test_a_replay_reads_the_seed_anew() -> None:
    here = world("llama")
    steps = here.steps(sampling=SAMPLING["rejection"])
    tokens = set()
    for seed in range(12):
        sequence = here.write(20)
        here.state.place(sequence, seed)
        with torch.no_grad():
            steps.verify(0)
        tokens.add(int(here.state.outcome[1]))
    assert len(tokens) > 3
