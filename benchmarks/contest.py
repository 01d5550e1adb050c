"""All contenders on all prompts in mirrored blocks, in one process, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from selfspec.arm_runs import ArmRuns, run_arms
from selfspec_calibrate.measurement import WARM_UP_TOKENS
from selfspec_calibrate.pair import speedup_interval
from selfspec_runtime.errors import SelfspecError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.contenders import Contender

    from selfspec_calibrate.measurement import MeasuredPrompt
    from selfspec_runtime.generation import GenerationSettings


@dataclass(kw_only=True)
class Outcome(ArmRuns):
    """What one contender did.

    Attributes:
        contender: Who.
        warm_up_s: Seconds of its first run, which loads, packs and compiles.
    """

    contender: Contender
    warm_up_s: float = 0.0


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
    if outcomes[0].failure:
        raise SelfspecError(outcomes[0].failure)
    able = [each.contender for each in outcomes if each.failure is None]
    twice = [each.arm for each in able if each.arm is not None and not each.is_slow]
    once = [each.arm for each in able if each.arm is not None and each.is_slow]
    found = run_arms(twice, prompts, settings, repeats=repeats, middle=once, say=say)
    for outcome in outcomes:
        runs = found.get(outcome.contender.name, ArmRuns())
        outcome.runs, outcome.failure = runs.runs, outcome.failure or runs.failure
    return outcomes


def summary(outcome: Outcome, baseline: Outcome, own: Outcome | None) -> dict[str, Any]:
    """One contender as data.

    Args:
        outcome: Its runs.
        baseline: What its speed is compared with.
        own: Plain decoding of this runtime, or None; texts are compared with its.
    """
    told = {"name": outcome.contender.name, "note": outcome.contender.note, "reason": outcome.failure}
    if outcome.failure is not None or not outcome.runs:
        return told
    interval = speedup_interval(outcome.pairs(baseline))
    return told | {
        "num_runs": len(outcome.all_runs),
        "tokens_per_s": outcome.tokens_per_s,
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


def _warmed(contender: Contender, prompt: MeasuredPrompt, settings: GenerationSettings) -> Outcome:
    outcome = Outcome(contender=contender, failure=contender.reason or None)
    if contender.arm is None:
        return outcome
    short = replace(settings, max_new_tokens=min(settings.max_new_tokens, WARM_UP_TOKENS))
    started = perf_counter()
    try:
        contender.arm.measure(prompt, short)
    except SelfspecError as error:
        outcome.failure = str(error)
    outcome.warm_up_s = perf_counter() - started
    return outcome
