"""What shows on a CPU that a step can be captured: one function per property, each raising where it does not hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from tests.support.capture_guards import OperatorTrace, capture_guard
from tests.support.replay_recorder import ReplayRecorder

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.device_steps import StepWorld
    from torch import Tensor

LENGTHS = (20, 33)


def require_no_host_reads(world: StepWorld, run: Callable[[], None]) -> None:
    """Raises at the first thing that a graph cannot hold; for worlds on a CPU as well as on meta tensors."""
    if world.target.device.type != "meta":
        world.write(LENGTHS[0])
    with torch.no_grad(), capture_guard(world.target.device.type):
        run()


def require_same_operators(world: StepWorld, run: Callable[[], None]) -> None:
    """Fails if shapes or Python arguments depend on how long the text is."""
    traces = []
    for length in LENGTHS:
        world.write(length)
        with torch.no_grad(), OperatorTrace() as trace:
            run()
        traces.append(trace.operators)
    pairs = zip(*traces, strict=False)
    first = next((pair for pair in pairs if pair[0] != pair[1]), None)
    assert first is None, f"operators differ with the length of the text: {first}"
    assert len(traces[0]) == len(traces[1]), "another number of operators for another length"


def require_replayable(world: StepWorld, run: Callable[[], None]) -> None:
    """Fails if operators recorded for one text do not give, replayed for another, what the step itself gives."""
    world.write(LENGTHS[0])
    recorder = ReplayRecorder()
    with torch.no_grad():
        recorder.warm_up(run)
        world.write(LENGTHS[0])
        recording = recorder.record(run)
        expected = _after(world, run)
        replayed = _after(world, recording.replay)
    for name, held in replayed.items():
        assert torch.equal(held, expected[name]), f"a replay gives another {name} than the step"


def _after(world: StepWorld, run: Callable[[], None]) -> dict[str, Tensor]:
    """The results for a second text: what a step hands on past its buffers shows only then."""
    for seed, length in enumerate((*LENGTHS, LENGTHS[1]), start=5):
        world.write(length, seed=seed)
        run()
    return _results(world)


def _results(world: StepWorld) -> dict[str, Tensor]:
    state = world.state
    named = {name: getattr(state, name).clone() for name in ("length", "cursor", "window", "outcome", "hidden")}
    named |= {f"part {index} of the laws": part.clone() for index, part in enumerate(state.laws)}
    keys, values = world.cache.storage()
    layers = zip(keys, values, strict=True)
    return named | {f"cache of layer {index}": torch.stack(pair) for index, pair in enumerate(layers)}
