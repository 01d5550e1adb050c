"""What a trace amounts to, in words and counts that every view shares."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from selfspec_runtime.token_trace import TokenTrace

FATE_WORDS = {
    "first": "first token, from the prompt's own pass",
    "accepted": "drafted and accepted",
    "corrected": "the model's own, in place of a rejected draft",
    "bonus": "the model's own, after a draft that stood whole",
    "plain": "the model's own, nothing was drafted",
}
"""Each fate in words, in the order of the legend."""


def headline(trace: TokenTrace) -> str:
    """What came out, in one or two sentences."""
    stats, rounds = trace.stats(), len(trace.rounds) - 1
    made = f"{_count(trace.num_tokens, 'token')}, decoded with {trace.plan}"
    if not stats.num_draft_tokens:
        return f"{made}. Nothing was drafted."
    share = f"{100 * (stats.acceptance_rate or 0):.0f} %"
    return (
        f"{made}: {_count(rounds, 'round')} of {stats.mean_acceptance_length:.2f} tokens each, "
        f"{stats.num_accepted_tokens:,} of {stats.num_draft_tokens:,} drafted tokens accepted ({share})."
    )


def depth_sentence(trace: TokenTrace) -> str:
    """How deep the model had to go."""
    settled = trace.settle_depth[trace.settle_depth <= trace.num_layers]
    if not len(settled):
        return "No token is the likeliest one of the full model: all were drawn against it."
    half, most = (int(np.ceil(np.quantile(settled, share, method="higher"))) for share in (0.5, 0.9))
    never = trace.num_tokens - len(settled)
    rest = f" {_count(never, 'token')} never settled: drawn, processed, or within rounding." if never else ""
    return (
        f"Half of the tokens are settled after layer {half} of {trace.num_layers}, "
        f"nine in ten after layer {most}.{rest}"
    )


def facts_of(trace: TokenTrace) -> list[tuple[str, str]]:
    """Counts with their names; the same numbers as the run's own statistics."""
    stats = trace.stats()
    rate, length = stats.acceptance_rate, stats.mean_acceptance_length
    return [
        ("Tokens", f"{trace.num_tokens:,}"),
        ("Rounds", f"{stats.num_rounds:,}"),
        ("Tokens per round", "–" if length is None else f"{length:.2f}"),
        ("Drafted", f"{stats.num_draft_tokens:,}"),
        ("Accepted", f"{stats.num_accepted_tokens:,}"),
        ("Acceptance rate", "–" if rate is None else f"{100 * rate:.1f} %"),
    ]


def acceptance_by_place(trace: TokenTrace) -> list[tuple[int, int, int]]:
    """For each place in a draft: its number from 1, tokens drafted for it, tokens accepted there."""
    drafted = list(zip_longest(*(each.drafted_per_place for each in trace.rounds), fillvalue=0))
    return [
        (place + 1, sum(counts), sum(each.num_accepted > place for each in trace.rounds))
        for place, counts in enumerate(drafted)
    ]


def agreement_by_layer(trace: TokenTrace) -> list[float]:
    """For each layer the share of tokens that the model would already have said there."""
    return [float(share) for share in trace.layers_agree.mean(axis=1)]


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
