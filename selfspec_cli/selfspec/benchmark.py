"""Compares ways to decode one model: mirrored blocks in one process, over output lengths and context lengths."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from selfspec.arm_runs import ArmRuns, run_arms
from selfspec_calibrate.interleave import run_block
from selfspec_calibrate.measurement import WARM_UP_TOKENS, MeasuredPrompt
from selfspec_calibrate.pair import speedup_interval
from selfspec_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from selfspec_calibrate.measurement import Arm
    from selfspec_runtime.generation import GenerationSettings

BASELINE = "plain"
DEFAULT_CONTEXT = 512
CONTEXT_NEW_TOKENS = 32
"""Tokens generated after a prompt of a given length."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Prompts and a length that are measured together.

    Attributes:
        axis: What is varied: ``output`` or ``context``.
        length: Its value, in tokens.
        prompts: What is decoded.
        max_new_tokens: How far.
    """

    axis: str
    length: int
    prompts: tuple[MeasuredPrompt, ...]
    max_new_tokens: int


def default_context(limit: int | None) -> list[int]:
    """The context length that is measured if nothing is said: 512, or what leaves room for a reply.

    Args:
        limit: The model's context length, or None.
    """
    length = DEFAULT_CONTEXT if limit is None else min(DEFAULT_CONTEXT, limit - CONTEXT_NEW_TOKENS)
    return [length] if length > 1 else []


def fitting(
    prompts: Sequence[MeasuredPrompt], *, output_lengths: Sequence[int], limit: int | None
) -> list[MeasuredPrompt]:
    """The prompts that leave room for the longest output.

    Args:
        prompts: Rendered prompts.
        output_lengths: Most new tokens after each of them; may be empty.
        limit: The model's context length, or None.

    Raises:
        UsageError: None does.
    """
    longest = max(output_lengths, default=0)
    found = [prompt for prompt in prompts if limit is None or len(prompt.token_ids) + longest <= limit]
    if not found:
        message = (
            f"No prompt leaves room for {longest} new tokens in the model's context of {limit}. "
            "Ask for less with --output-lengths."
        )
        raise UsageError(message)
    return found


def scenarios(
    prompts: Sequence[MeasuredPrompt],
    *,
    pool: Sequence[MeasuredPrompt],
    output_lengths: Sequence[int],
    context_lengths: Sequence[int],
    limit: int | None,
) -> list[Scenario]:
    """What is measured.

    Args:
        prompts: Rendered prompts that fit, as `fitting` gives them.
        pool: All rendered prompts, of which long contexts are made.
        output_lengths: Most new tokens after each of them.
        context_lengths: Lengths to which others of the pool are put before each prompt.
        limit: The model's context length, or None.

    Raises:
        UsageError: A length does not fit the model or the prompts.
    """
    for length in context_lengths:
        needed = length + CONTEXT_NEW_TOKENS
        if limit is not None and needed > limit:
            message = (
                f"A context of {length} tokens and a reply take {needed} positions, and the model's context holds "
                f"{limit}. Ask for less with --context-lengths."
            )
            raise UsageError(message)
    varied_output = [
        Scenario(axis="output", length=length, prompts=tuple(prompts), max_new_tokens=length)
        for length in output_lengths
    ]
    varied_context = [
        Scenario(
            axis="context",
            length=length,
            prompts=tuple(_lengthened(prompt, pool, length) for prompt in prompts),
            max_new_tokens=CONTEXT_NEW_TOKENS,
        )
        for length in context_lengths
    ]
    return [*varied_output, *varied_context]


def compare(
    arms: Sequence[Arm],
    measured: Sequence[Scenario],
    settings: GenerationSettings,
    *,
    repeats: int = 1,
    say: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    """Measures all arms in all scenarios.

    Args:
        arms: The baseline first.
        measured: The scenarios, at least one.
        settings: How to generate; the length is the scenario's.
        repeats: Mirrored blocks per prompt: each arm runs twice in each.
        say: Hears of progress.

    Yields:
        One row per scenario and arm.

    Raises:
        SelfspecError: The baseline failed.
    """
    warm = run_block(arms, measured[0].prompts[0], replace(settings, max_new_tokens=WARM_UP_TOKENS))
    able = [arm for arm in arms if arm.name not in warm.failures]
    for scenario in measured:
        limited = replace(settings, max_new_tokens=scenario.max_new_tokens)
        tell = partial(_tell, say, scenario)
        runs = run_arms(able, scenario.prompts, limited, repeats=repeats, say=tell)
        failed = {name: ArmRuns(failure=str(error)) for name, error in warm.failures.items()}
        for arm in arms:
            yield _row(scenario, arm.name, {**runs, **failed}[arm.name], runs[arms[0].name])


def _lengthened(prompt: MeasuredPrompt, pool: Sequence[MeasuredPrompt], length: int) -> MeasuredPrompt:
    """A prompt with other prompts before it; nothing is repeated, which would flatter n-gram drafts."""
    others = [other for other in pool if other.prompt_id != prompt.prompt_id]
    ids = [token_id for part in (*others, prompt) for token_id in part.token_ids]
    if len(ids) < length:
        message = (
            f"All prompts together have {len(ids)} tokens, and a context of {length} is asked for. Give more prompts."
        )
        raise UsageError(message)
    return replace(prompt, token_ids=tuple(ids[-length:]))


def _tell(say: Callable[[str], None], scenario: Scenario, text: str) -> None:
    say(f"{scenario.axis} {scenario.length}: {text}")


def _row(scenario: Scenario, name: str, arm: ArmRuns, baseline: ArmRuns) -> dict[str, Any]:
    row: dict[str, Any] = {"axis": scenario.axis, "length": scenario.length, "arm": name, "failure": arm.failure}
    timed = arm.pairs(baseline)
    if arm.failure is not None or not timed:
        return row
    interval, stats = speedup_interval(timed), arm.stats
    return row | {
        "num_prompts": len(timed),
        "tokens_per_s": arm.tokens_per_s,
        "speedup": None if interval is None or arm is baseline else interval.model_dump(),
        "time_to_first_token_s": median(run.time_to_first_token_s for run in arm.all_runs),
        "tokens_per_round": stats.mean_acceptance_length,
        "acceptance_rate": stats.acceptance_rate,
    }
