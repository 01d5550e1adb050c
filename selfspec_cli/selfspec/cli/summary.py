"""What is said about a generation after it: one line, the details, or JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from selfspec.result import Result
    from selfspec_runtime.plan import DraftPlan


def speed_line(result: Result) -> str:
    """One line: tokens, speed, drafts, reason of the end."""
    stats, tokens = result.stats, len(result.token_ids)
    speed = result.tokens_per_s
    parts = [
        f"{tokens} token{'s' * (tokens != 1)}",
        "" if speed is None else f"{speed:.1f} tok/s",
        ""
        if not stats.num_draft_tokens
        else f"{stats.num_accepted_tokens} of {stats.num_draft_tokens} drafts accepted",
        f"ended by {result.finish_reason}" if result.finish_reason else "interrupted",
    ]
    return ", ".join(part for part in parts if part)


def detail_lines(result: Result) -> tuple[str, ...]:
    """Everything that was counted, one fact a line."""
    stats, seconds = result.stats, result.seconds
    whole = seconds.decode or 1.0
    rate, mean = stats.acceptance_rate, stats.mean_acceptance_length
    shares = [f"{name} {getattr(seconds, name) / whole:.0%}" for name in ("draft", "verify", "host")]
    places = ", ".join(str(count) for count in stats.num_accepted_tokens_per_pos)
    return (
        speed_line(result),
        f"prompt: {len(result.prompt_token_ids)} tokens, first token after {seconds.prefill:.2f} s",
        f"rounds: {stats.num_rounds} passes of the whole model, {stats.num_draft_passes} of the draft",
        "accepted: nothing was drafted"
        if rate is None
        else f"accepted: {rate:.0%} of drafted tokens, by place {places}",
        "tokens per round: –" if mean is None else f"tokens per round: {mean:.2f}",
        f"time after the first token: {seconds.decode:.2f} s, {', '.join(shares)}",
    )


def comparison_line(result: Result, plain: Result) -> str:
    """The same prompt with and without the plan; one run, not a measurement."""
    if result.tokens_per_s is None or plain.tokens_per_s is None:
        return "The reply is too short to compare speeds."
    ratio = result.tokens_per_s / plain.tokens_per_s
    same = "the same text" if plain.token_ids == result.token_ids else "another text"
    return (
        f"plain decoding: {plain.tokens_per_s:.1f} tok/s, this reply: {result.tokens_per_s:.1f} tok/s, {ratio:.2f}x "
        f"({same}; one run, see selfspec bench for a measurement)"
    )


def result_json(result: Result, plan: DraftPlan) -> dict[str, Any]:
    """The result as JSON values."""
    return {
        "text": result.text,
        "token_ids": list(result.token_ids),
        "finish_reason": result.finish_reason,
        "stats": asdict(result.stats),
        "seconds": asdict(result.seconds),
        "tokens_per_s": result.tokens_per_s,
        "num_prompt_tokens": len(result.prompt_token_ids),
        "plan": plan.model_dump(mode="json"),
        "notices": list(result.notices),
    }
