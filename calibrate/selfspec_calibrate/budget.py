"""What a time budget affords on this machine: prompts, tokens, and seconds for each phase."""

from __future__ import annotations

from dataclasses import dataclass

LENGTHS = (256, 192, 128, 96, 64, 48, 32)
MIN_HELD_OUT = 4
MIN_TIMED = 4

#: Generations per held-out prompt, in units of a plain one: plain twice, the zero step's plan twice, the next
#: memory step's plan twice, transformers once; plans are counted as if they brought nothing.
VERDICT_RUNS = 7.0

#: Generations per prompt of a mirrored block of the timed study, and how many such blocks of plans are wanted.
BLOCK_RUNS = 6
WANTED_BLOCKS = 6

#: Shares of the budget. What a phase does not use is left to the timed study.
VERDICT_SHARE = 0.42
TRACE_SHARE = 0.12
COST_SHARE = 0.08
PREDICTED_SHARE = 0.20
FINALS_SHARE = 0.10


@dataclass(frozen=True, kw_only=True)
class Pace:
    """First timing of the loaded model.

    Attributes:
        token_s: Seconds per token of plain decoding.
        prefill_s: Seconds of a prompt's pass, on average over the prompts.
    """

    token_s: float
    prefill_s: float

    def generation_s(self, num_tokens: int) -> float:
        """Seconds of one plain generation."""
        return self.prefill_s + num_tokens * self.token_s


@dataclass(frozen=True, kw_only=True)
class Allowance:
    """What will be done.

    Attributes:
        max_new_tokens: Tokens per generation.
        num_search: Search prompts.
        num_timed: The first of them, on which plans are timed; all of them are traced.
        num_held_out: Held-out prompts.
        cost_s: Seconds for the cost model.
        predicted_s: Seconds for the predicted study.
        finals_s: Seconds for re-measuring the finalists.
        verdict_s: Seconds that the verdict will take.
    """

    max_new_tokens: int
    num_search: int
    num_timed: int
    num_held_out: int
    cost_s: float
    predicted_s: float
    finals_s: float
    verdict_s: float

    def describe(self) -> str:
        """One sentence for the user."""
        return (
            f"The budget affords {self.max_new_tokens} tokens per generation on {self.num_search} search prompts "
            f"(plans are timed on {self.num_timed}) and {self.num_held_out} held-out prompts."
        )


def plan_allowance(
    pace: Pace,
    *,
    budget_s: float,
    num_search: int,
    num_held_out: int,
    max_new_tokens: int | None = None,
    num_samplings: int = 1,
    verdict_runs: float = VERDICT_RUNS,
) -> Allowance:
    """Divides a budget.

    The verdict comes first: all held-out prompts, at the longest generations that fit into its share. Only
    where even the shortest do not fit are prompts left out.

    Args:
        pace: The model's first timing.
        budget_s: Seconds for everything.
        num_search: Search prompts at hand.
        num_held_out: Held-out prompts at hand.
        max_new_tokens: The user's own length, or None.
        num_samplings: How many sampling settings the verdict is measured at.
        verdict_runs: Generations per held-out prompt, in units of a plain one.
    """
    lengths = (max_new_tokens,) if max_new_tokens is not None else LENGTHS
    verdict_budget = VERDICT_SHARE * budget_s / num_samplings

    def verdict_s(length: int, prompts: int) -> float:
        return prompts * verdict_runs * pace.generation_s(length)

    length = next((n for n in lengths if verdict_s(n, num_held_out) <= verdict_budget), lengths[-1])
    affordable = int(verdict_budget / verdict_s(length, 1))
    held_out = min(num_held_out, max(affordable, min(MIN_HELD_OUT, num_held_out)))
    search = min(num_search, max(int(TRACE_SHARE * budget_s / pace.generation_s(length)), min(4, num_search)))
    timed_s = (1 - COST_SHARE - PREDICTED_SHARE - FINALS_SHARE) * budget_s
    timed_s -= verdict_s(length, held_out) * num_samplings + search * pace.generation_s(length)
    timed = int(timed_s / (WANTED_BLOCKS * BLOCK_RUNS * pace.generation_s(length)))
    return Allowance(
        max_new_tokens=length,
        num_search=search,
        num_timed=min(search, max(timed, MIN_TIMED)),
        num_held_out=held_out,
        cost_s=COST_SHARE * budget_s,
        predicted_s=PREDICTED_SHARE * budget_s,
        finals_s=FINALS_SHARE * budget_s,
        verdict_s=verdict_s(length, held_out) * num_samplings,
    )
