"""A made-up model on which the speed of every plan is known: early exits with a fixed number of drafts."""

from __future__ import annotations

from collections.abc import Sequence

from selfspec_runtime.controllers.fixed import FixedSpec
from selfspec_runtime.drafts.early_exit import EarlyExitSpec
from selfspec_runtime.drafts.ngram import NgramSpec
from selfspec_runtime.plan import DraftPlan

NUM_LAYERS = 10
MAX_DRAFTS = 6
BEST_EXIT, BEST_DRAFTS = 5, 3


def exit_plan(exit_layer: int, num_draft_tokens: int = BEST_DRAFTS) -> DraftPlan:
    return DraftPlan(
        source=EarlyExitSpec(exit_layer=exit_layer), controller=FixedSpec(num_draft_tokens=num_draft_tokens)
    )


BEST = exit_plan(BEST_EXIT)
NGRAM = DraftPlan(source=NgramSpec())


def speedup_of(plan: DraftPlan) -> float:
    """2 for the best plan, and 0.2 less for each step away from it; 1 for plain decoding."""
    if not isinstance(plan.source, EarlyExitSpec):
        return 1.0
    away = abs(plan.source.exit_layer - BEST_EXIT) + abs(plan.max_draft_tokens - BEST_DRAFTS)
    return max(2.0 - 0.2 * away, 0.3)


def token_s(plan: DraftPlan, ids: tuple[int, ...]) -> float:
    """Seconds per token; prompts differ twofold, and plans a little from prompt to prompt."""
    prompt = 1.0 + 0.1 * (ids[0] % 10)
    wobble = 1.0 if plan.is_plain else 1.0 + 0.02 * ((ids[0] * 7 + plan.max_draft_tokens) % 5 - 2)
    return prompt * wobble / speedup_of(plan)


def neighbours(plan: DraftPlan) -> Sequence[DraftPlan]:
    """One layer or one draft token more or less."""
    if not isinstance(plan.source, EarlyExitSpec):
        return []
    exit_layer, drafts = plan.source.exit_layer, plan.max_draft_tokens
    steps = ((exit_layer - 1, drafts), (exit_layer + 1, drafts), (exit_layer, drafts - 1), (exit_layer, drafts + 1))
    return [exit_plan(k, n) for k, n in steps if 1 <= k < NUM_LAYERS and 1 <= n <= MAX_DRAFTS]
