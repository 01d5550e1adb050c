"""What ways of decoding did on the same prompts, in mirrored blocks in one process."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from selfspec_calibrate.interleave import Block, run_block
from selfspec_calibrate.pair import PromptPair
from selfspec_runtime.stats import AcceptanceStats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from selfspec_calibrate.measurement import Arm, MeasuredPrompt, RunMeasurement
    from selfspec_runtime.generation import GenerationSettings


@dataclass
class ArmRuns:
    """What one arm did.

    Attributes:
        runs: Its runs, by prompt.
        failure: Why it cannot decode this model, or not all prompts; None if it can.
    """

    runs: dict[str, list[RunMeasurement]] = field(default_factory=dict)
    failure: str | None = None

    def add(self, block: Block, name: str, prompt: MeasuredPrompt) -> None:
        """Takes over what an arm did in a block."""
        if name in block.failures:
            self.failure = self.failure or str(block.failures[name])
        elif name in block.runs:
            self.runs[prompt.prompt_id] = block.runs[name]

    def pairs(self, other: ArmRuns) -> list[PromptPair]:
        """Totals beside another arm's, on every prompt on which both emitted something that was timed."""
        shared = [prompt for prompt in self.runs if prompt in other.runs]
        pairs = (PromptPair.of(other.runs[prompt], self.runs[prompt]) for prompt in shared)
        return [pair for pair in pairs if pair.is_timed]

    @property
    def all_runs(self) -> list[RunMeasurement]:
        """Its runs on all prompts."""
        return [run for runs in self.runs.values() for run in runs]

    @property
    def stats(self) -> AcceptanceStats:
        """Counts over all runs."""
        total = AcceptanceStats()
        for run in self.all_runs:
            total.add(run.stats)
        return total

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens after the first over seconds, the median over prompts; None if nothing was timed."""
        totals = ((_total_tokens(runs), _total_s(runs)) for runs in self.runs.values())
        speeds = [tokens / seconds for tokens, seconds in totals if tokens and seconds]
        return median(speeds) if speeds else None

    @property
    def host_share(self) -> float | None:
        """Share of the time outside drafting and the target's passes; None where that is not known."""
        total = sum(run.seconds.decode for run in self.all_runs)
        return sum(run.seconds.host for run in self.all_runs) / total if total else None


def run_arms(
    arms: Sequence[Arm],
    prompts: Sequence[MeasuredPrompt],
    settings: GenerationSettings,
    *,
    repeats: int = 1,
    middle: Sequence[Arm] = (),
    say: Callable[[str], None],
) -> dict[str, ArmRuns]:
    """Runs all arms on all prompts; one that fails is not asked again.

    Args:
        arms: The baseline first.
        prompts: What is decoded.
        settings: How, the same for all.
        repeats: Mirrored blocks per prompt: each arm runs twice in each.
        middle: Arms that run once where a block turns round.
        say: Hears of progress.

    Returns:
        What each did, by name.

    Raises:
        SelfspecError: The baseline failed.
    """
    found = {arm.name: ArmRuns() for arm in (*arms, *middle)}
    for number, prompt in enumerate(prompts, start=1):
        say(f"prompt {number} of {len(prompts)}")
        able = [arm for arm in arms if found[arm.name].failure is None]
        once = [arm for arm in middle if found[arm.name].failure is None]
        block = run_block(able, prompt, settings, repeats=repeats, middle=once)
        for name, runs in found.items():
            runs.add(block, name, prompt)
    return found


def _total_tokens(runs: Sequence[RunMeasurement]) -> int:
    return sum(run.num_tokens for run in runs)


def _total_s(runs: Sequence[RunMeasurement]) -> float:
    return sum(run.decode_s for run in runs)
