"""Mirrored blocks: plain, A, B, B, A, plain, so that a machine that warms up or slows down favours nobody."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING

import torch

from selfspec_runtime.errors import SelfspecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec_calibrate.measurement import Arm, MeasuredPrompt, RunMeasurement
    from selfspec_runtime.generation import GenerationSettings

OUT_OF_MEMORY = (MemoryError, torch.OutOfMemoryError)


@dataclass(frozen=True)
class Block:
    """The runs of one prompt.

    Attributes:
        runs: For each arm that got through, all its runs.
        failures: For each arm that did not, why; it has no runs then.
    """

    runs: dict[str, list[RunMeasurement]] = field(default_factory=dict)
    failures: dict[str, SelfspecError] = field(default_factory=dict)

    def add(self, arm: Arm, prompt: MeasuredPrompt, settings: GenerationSettings) -> None:
        """Runs an arm once, unless it failed before; a failed arm loses the runs that it had."""
        if arm.name in self.failures:
            return
        try:
            self.runs.setdefault(arm.name, []).append(arm.measure(prompt, settings))
        except (SelfspecError, *OUT_OF_MEMORY) as error:
            self.failures[arm.name] = as_selfspec_error(error)
            del self.runs[arm.name]


def run_block(
    arms: Sequence[Arm],
    prompt: MeasuredPrompt,
    settings: GenerationSettings,
    *,
    repeats: int = 1,
    middle: Sequence[Arm] = (),
) -> Block:
    """Measures one prompt with all arms, there and back, so that each arm runs ``2 * repeats`` times.

    Args:
        arms: The baseline first.
        prompt: The prompt.
        settings: How to generate.
        repeats: Mirrored blocks to run.
        middle: Arms that run once where a block turns round, which is as fair for half the time.

    Raises:
        SelfspecError: The baseline failed: then the prompt or the model is at fault, not a plan.
    """
    block = Block()
    for arm in [*arms, *middle, *reversed(arms)] * repeats:
        block.add(arm, prompt, settings)
        if arms[0].name in block.failures:
            raise block.failures[arms[0].name]
    return block


def shuffled(prompts: Sequence[MeasuredPrompt], *, seed: int) -> list[MeasuredPrompt]:
    """Prompts in a random order in which the kinds take turns, so that the first few of them stand for all."""
    order = random.Random(seed)
    kinds: dict[str, list[MeasuredPrompt]] = defaultdict(list)
    for prompt in order.sample(list(prompts), len(prompts)):
        kinds[prompt.kind].append(prompt)
    rounds = zip_longest(*kinds.values())
    return [prompt for turn in rounds for prompt in turn if prompt is not None]


def as_selfspec_error(error: BaseException) -> SelfspecError:
    """The error itself, or one that says that memory ran out."""
    if isinstance(error, SelfspecError):
        return error
    message = f"Memory ran out: {str(error).splitlines()[0] if str(error) else 'no more could be had'}"
    return SelfspecError(message)
