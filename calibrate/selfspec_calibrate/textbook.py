"""The textbook law of speculative decoding (Leviathan et al. 2211.17192, section 3), for an estimate before any run.

It takes every draft token to be accepted independently with one probability. Real acceptance comes in runs, and
a verification is rarely free, so this is a first estimate; what calibration reports is measured.
"""

from __future__ import annotations

import math

from selfspec_runtime.errors import UsageError

MAX_DRAFT_TOKENS = 10_000
"""More than any draft has: the sum over places would only take time."""


def expected_tokens(acceptance: float, num_draft_tokens: int) -> float:
    """Expected tokens that one round emits, the target's own included.

    Args:
        acceptance: Probability that a draft token is accepted, in ``[0, 1]``.
        num_draft_tokens: Tokens drafted per round, from 0 to 10,000.

    Returns:
        ``1 + a + a² + … + aⁿ``, between 1 and ``n + 1``.

    Raises:
        UsageError: An argument lies outside its range.
    """
    _require(0.0 <= acceptance <= 1.0, f"The acceptance rate is {acceptance}", "a number from 0 to 1")
    is_possible = 0 <= num_draft_tokens <= MAX_DRAFT_TOKENS
    _require(is_possible, f"The number of draft tokens is {num_draft_tokens}", f"0 to {MAX_DRAFT_TOKENS}")
    # Summed rather than in closed form, which loses all digits as the acceptance nears 1.
    return math.fsum(acceptance**place for place in range(num_draft_tokens + 1))


def expected_speedup(
    acceptance: float, draft_cost_ratio: float, num_draft_tokens: int, verify_cost_ratio: float = 1.0
) -> float:
    """Expected speedup over plain decoding.

    Args:
        acceptance: Probability that a draft token is accepted, in ``[0, 1]``.
        draft_cost_ratio: Time of a draft pass, its head included, over the time of a plain step.
        num_draft_tokens: Tokens drafted per round, at least 0.
        verify_cost_ratio: Time of a verification of ``n + 1`` tokens over the time of a plain step.

    Returns:
        Tokens per round over the round's time in plain steps.

    Raises:
        UsageError: An argument lies outside its range.
    """
    _require_ratio(draft_cost_ratio)
    given = f"The cost of a verification is {verify_cost_ratio} plain steps"
    _require(0.0 < verify_cost_ratio < math.inf, given, "a positive number")
    tokens = expected_tokens(acceptance, num_draft_tokens)
    return tokens / (num_draft_tokens * draft_cost_ratio + verify_cost_ratio)


def ceiling(draft_cost_ratio: float) -> float:
    """The speedup that no acceptance and no draft length exceeds.

    Args:
        draft_cost_ratio: Time of a draft pass over the time of a plain step.

    Returns:
        ``1 / c``, and 1.0 where a draft pass costs a plain step or more: then not drafting is best. Infinite for a
        draft that costs nothing.

    Raises:
        UsageError: The ratio is negative or not a number.
    """
    _require_ratio(draft_cost_ratio)
    return math.inf if draft_cost_ratio == 0.0 else max(1.0, 1.0 / draft_cost_ratio)


def best_num_draft_tokens(
    acceptance: float, draft_cost_ratio: float, *, verify_cost_ratio: float = 1.0, max_draft_tokens: int = 16
) -> int:
    """The number of draft tokens with the highest expected speedup.

    Args:
        acceptance: Probability that a draft token is accepted, in ``[0, 1]``.
        draft_cost_ratio: Time of a draft pass over the time of a plain step.
        verify_cost_ratio: Time of a verification over the time of a plain step.
        max_draft_tokens: Most tokens to consider, at least 1.

    Returns:
        The smallest best number; 0 if no number beats plain decoding.

    Raises:
        UsageError: An argument lies outside its range.
    """
    _require(max_draft_tokens >= 1, f"The most draft tokens to consider is {max_draft_tokens}", "1 or more")
    best, highest = 0, 1.0
    for num_draft_tokens in range(1, max_draft_tokens + 1):
        speedup = expected_speedup(acceptance, draft_cost_ratio, num_draft_tokens, verify_cost_ratio)
        if speedup > highest:
            best, highest = num_draft_tokens, speedup
    return best


def _require_ratio(draft_cost_ratio: float) -> None:
    given = f"The cost of a draft pass is {draft_cost_ratio} plain steps"
    _require(0.0 <= draft_cost_ratio < math.inf, given, "0 or a positive number")


def _require(holds: bool, given: str, wanted: str) -> None:
    if not holds:
        message = f"{given}, which the textbook law has no meaning for. Give {wanted}."
        raise UsageError(message)
