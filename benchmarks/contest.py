"""All contenders on all prompts in mirrored blocks, in one process, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from selfspec_calibrate.interleave import run_block
from selfspec_calibrate.measurement import WARM_UP_TOKENS
from selfspec_calibrate.pair import PromptPair, speedup_interval
from selfspec_runtime.errors import SelfspecError
from selfspec_runtime.stats import AcceptanceStats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.contenders import Contender

    from selfspec_calibrate.measurement import MeasuredPrompt, RunMeasurement
    from selfspec_runtime.engine import GenerationSettings


@dataclass
class Outcome:
    """What one contender did.

    Attributes:
        contender: Who.
        runs: Its runs, by prompt.
        reason: Why there are none.
        warm_up_s: Seconds of its first run, which loads, packs and compiles.
    """

    contender: Contender
    runs: dict[str, list[RunMeasurement]] = field(default_factory=dict)
    reason: str = ""
    warm_up_s: float = 0.0

    def pairs(self, other: Outcome) -> list[PromptPair]:
        """Totals beside another's, on every prompt that both decoded."""
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
    def host_share(self) -> float | None:
        """Share of the time outside drafting and the target's passes; None where that is not known."""
        total = sum(run.seconds.decode for run in self.all_runs)
        return sum(run.seconds.host for run in self.all_runs) / total if total else None


def compete(
    contenders: Sequence[Contender],
    prompts: Sequence[MeasuredPrompt],
    settings: GenerationSettings,
    *,
    repeats: int,
    say: Callable[[str], None],
) -> list[Outcome]:
    """Runs everyone on everything.

    Args:
        contenders: The baseline first.
        prompts: What is decoded, at least one.
        settings: How, the same for all.
        repeats: Mirrored blocks per prompt.
        say: Hears of progress.

    Raises:
        SelfspecError: The baseline failed.
    """
    outcomes = [_warmed(each, prompts[0], settings) for each in contenders]
    if outcomes[0].reason:
        raise SelfspecError(outcomes[0].reason)
    for number, prompt in enumerate(prompts, start=1):
        say(f"prompt {number} of {len(prompts)}")
        able = [each.contender for each in outcomes if not each.reason]
        twice = [each.arm for each in able if each.arm is not None and not each.is_slow]
        once = [each.arm for each in able if each.arm is not None and each.is_slow]
        block = run_block(twice, prompt, settings, repeats=repeats, middle=once)
        for outcome in outcomes:
            name = outcome.contender.name
            if name in block.runs:
                outcome.runs[prompt.prompt_id] = block.runs[name]
            elif name in block.failures:
                outcome.reason = outcome.reason or str(block.failures[name])
    return outcomes


def summary(outcome: Outcome, baseline: Outcome, own: Outcome | None) -> dict[str, Any]:
    """One contender as data.

    Args:
        outcome: Its runs.
        baseline: What its speed is compared with.
        own: Plain decoding of this runtime, or None; texts are compared with its.
    """
    told = {"name": outcome.contender.name, "note": outcome.contender.note, "reason": outcome.reason or None}
    if outcome.reason or not outcome.runs:
        return told
    speeds = [total_tokens(runs) / total_s(runs) for runs in outcome.runs.values() if total_s(runs) > 0]
    interval = speedup_interval(outcome.pairs(baseline))
    return told | {
        "num_runs": len(outcome.all_runs),
        "tokens_per_s": median(speeds) if speeds else None,
        "over_baseline": None if interval is None else interval.model_dump(),
        "warm_up_s": outcome.warm_up_s,
        "tokens_per_round": outcome.stats.mean_acceptance_length,
        "acceptance_rate": outcome.stats.acceptance_rate,
        "host_share": outcome.host_share,
        "same_text_as_own_plain": None if own is None else same_texts(outcome, own),
        "num_texts": len(outcome.runs),
    }


def same_texts(one: Outcome, other: Outcome) -> int:
    """On how many prompts both said the same."""
    shared = [prompt for prompt in one.runs if prompt in other.runs]
    return sum(one.runs[prompt][0].token_ids == other.runs[prompt][0].token_ids for prompt in shared)


def total_tokens(runs: Sequence[RunMeasurement]) -> int:
    """Tokens after the first ones."""
    return sum(run.num_tokens for run in runs)


def total_s(runs: Sequence[RunMeasurement]) -> float:
    """Seconds that they took."""
    return sum(run.decode_s for run in runs)


def _warmed(contender: Contender, prompt: MeasuredPrompt, settings: GenerationSettings) -> Outcome:
    outcome = Outcome(contender, reason=contender.reason)
    if contender.arm is None:
        return outcome
    short = replace(settings, max_new_tokens=min(settings.max_new_tokens, WARM_UP_TOKENS))
    started = perf_counter()
    try:
        contender.arm.measure(prompt, short)
    except SelfspecError as error:
        outcome.reason = str(error)
    outcome.warm_up_s = perf_counter() - started
    return outcome
