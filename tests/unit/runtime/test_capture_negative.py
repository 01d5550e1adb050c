"""The checks of capture safety notice what they are there for: each wrong step fails the one that is meant for it."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.support.capture_checks import require_no_host_reads, require_replayable, require_same_operators
from tests.support.capture_guards import HostReadError
from tests.support.device_steps import StepWorld, meta_world, step_world
from tests.support.replay_recorder import torch_only  # noqa: F401
from tests.support.tiny_models import tiny_model

pytestmark = pytest.mark.usefixtures("torch_only")
CHECKS = {
    "no host reads": require_no_host_reads,
    "no host reads on meta": require_no_host_reads,
    "same operators": require_same_operators,
    "replayable": require_replayable,
}


def reads_an_item(world: StepWorld, memory: Any) -> None:
    del memory
    if world.state.length.item() >= 0:
        world.state.outcome.add_(0.0)


def branches_on_a_tensor(world: StepWorld, memory: Any) -> None:
    del memory
    if world.state.length > 25:
        world.state.outcome.add_(1.0)


def slices_by_a_tensor(world: StepWorld, memory: Any) -> None:
    del memory
    world.state.outcome[2:3].copy_(world.state.window[: world.state.cursor[0] + 1].sum())


def writes_by_a_mask(world: StepWorld, memory: Any) -> None:
    del memory
    world.state.window[world.state.window > 90] = 3


def makes_a_tensor_from_host_data(world: StepWorld, memory: Any) -> None:
    del memory
    world.state.outcome[2:3].copy_(torch.tensor([1.0], device=world.target.device)[0])


def copies_from_another_device(world: StepWorld, memory: Any) -> None:
    memory.table = getattr(memory, "table", None)
    if memory.table is None:
        memory.table = torch.ones(1)
    world.state.outcome[2:3].copy_(memory.table)


def draws_from_a_generator(world: StepWorld, memory: Any) -> None:
    del memory
    world.state.outcome[2:3].copy_(torch.rand(1, device=world.target.device))


def bakes_the_length_in(world: StepWorld, memory: Any) -> None:
    del memory
    world.state.outcome[2:3].fill_(float(world.cache.length))


def shapes_by_the_length(world: StepWorld, memory: Any) -> None:
    del memory
    keys, _ = world.cache.storage()
    world.state.outcome[2:3].copy_(keys[0][:, :, : world.cache.length].sum())


def replaces_a_buffer(world: StepWorld, memory: Any) -> None:
    memory.held = getattr(memory, "held", world.state.length * 0)
    world.state.outcome[2:3].copy_(memory.held)
    memory.held = world.state.length + 0


def draws_in_python(world: StepWorld, memory: Any) -> None:
    del memory
    world.state.outcome[2:3].fill_(random.random())


#: For each wrong step the checks that must fail; others may.
WRONG_STEPS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "item": (reads_an_item, ("no host reads", "no host reads on meta")),
    "branch": (branches_on_a_tensor, ("no host reads", "no host reads on meta", "replayable", "same operators")),
    "slice": (slices_by_a_tensor, ("no host reads", "no host reads on meta")),
    "mask": (writes_by_a_mask, ("no host reads", "no host reads on meta")),
    "host data": (makes_a_tensor_from_host_data, ("no host reads", "no host reads on meta")),
    "other device": (copies_from_another_device, ("no host reads on meta",)),
    "generator": (draws_from_a_generator, ("no host reads", "no host reads on meta", "replayable")),
    "baked length": (bakes_the_length_in, ("same operators", "replayable")),
    "length in a shape": (shapes_by_the_length, ("same operators", "replayable")),
    "replaced buffer": (replaces_a_buffer, ("replayable",)),
    "random number": (draws_in_python, ("same operators", "replayable")),
}


def run_check(name: str, wrong: Any | None) -> None:
    world = meta_world("llama") if name.endswith("meta") else step_world(tiny_model("llama"))
    steps, memory = world.steps(), SimpleNamespace()

    def run() -> None:
        steps.verify(2, drawn=False)
        if wrong is not None:
            wrong(world, memory)

    CHECKS[name](world, run)


@pytest.mark.parametrize("check", CHECKS)
def test_a_right_step_passes(check: str) -> None:
    run_check(check, None)


@pytest.mark.parametrize(
    ("wrong", "check"), [(wrong, check) for wrong, (_, checks) in WRONG_STEPS.items() for check in checks]
)
def test_a_wrong_step_is_noticed(wrong: str, check: str) -> None:
    step, _ = WRONG_STEPS[wrong]
    error = HostReadError if check.startswith("no host reads") else AssertionError
    with pytest.raises(error):
        run_check(check, step)
