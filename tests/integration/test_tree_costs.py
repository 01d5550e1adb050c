"""Where side branches pay and where they do not, on counted costs: passes of the draft, and rows of the target's."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from tests.support.tiny_models import VOCAB_SIZE, hopeless, prompt_ids, tiny_model, tiny_target
from torch import Tensor

from selfspec_runtime.controllers.fixed import FixedController
from selfspec_runtime.decoder import Decoder
from selfspec_runtime.drafts.branching import BranchingSource
from selfspec_runtime.drafts.draft import Draft
from selfspec_runtime.drafts.source import DraftSource, RoundContext
from selfspec_runtime.engine import Engine
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.plan import DraftPlan
from selfspec_runtime.stats import AcceptanceStats
from selfspec_runtime.target import Target

PROMPT = prompt_ids(16)
NUM_TOKENS = 121
DRAFT_PASS, FURTHER_ROW = 0.2, 0.05
"""Costs in units of a pass of the target over one row."""
MISTAKEN = frozenset(random.Random(0).sample(range(200), 67))
"""Places in the text where the draft's likeliest token is wrong; none regular, lest rounds fall into step with them."""


@cache
def text() -> tuple[int, ...]:
    """Prompt and what plain decoding says."""
    said = Engine(tiny_target("llama")).generate(PROMPT, GenerationSettings(max_new_tokens=NUM_TOKENS + 20))
    return (*PROMPT, *said.token_ids)


@dataclass(frozen=True)
class Draftsman(DraftSource):
    """Knows the text, and at one place in three takes another token for likeliest.

    Attributes:
        second_is_right: Whether its second choice is then the text's token.
        is_sure: Whether it does not notice.
    """

    second_is_right: bool = True
    is_sure: bool = False

    def propose(self, context: RoundContext) -> Draft:
        draft = Draft(origin="scripted")
        while len(draft) < context.budget:
            place = len(context.sequence) + len(draft)
            choice = context.rule.choose(self._logits(place), context.sequence, draft.token_ids)
            draft.append(choice.token_id, choice.probs)
            draft.num_passes += 1
        return draft

    def _logits(self, place: int) -> Tensor:
        right = text()[place]
        others = [(right + shift) % VOCAB_SIZE for shift in range(1, 9)]
        ranked = [others[0], right, *others[1:]] if self.second_is_right else [*others, right]
        if place not in MISTAKEN:
            ranked = [right, *others]
        logits = torch.full((1, VOCAB_SIZE), -9.0)
        logits[0, ranked] = -torch.arange(9.0) / 2
        logits[0, ranked[0]] += 9.0 if place not in MISTAKEN or self.is_sure else 0.0
        return logits


def run(source: DraftSource) -> AcceptanceStats:
    engine = Engine(tiny_target("llama"))
    engine.decoder = Decoder(engine.target, source, FixedController(4))
    generation = engine.generate(PROMPT, GenerationSettings(max_new_tokens=NUM_TOKENS))
    assert generation.token_ids == text()[len(PROMPT) : len(PROMPT) + NUM_TOKENS]
    return generation.stats


def cost(stats: AcceptanceStats) -> float:
    """Cost of a token, where plain decoding costs 1."""
    verified = stats.num_rounds + FURTHER_ROW * stats.num_draft_tokens
    return (verified + DRAFT_PASS * stats.num_draft_passes) / stats.num_emitted_tokens


def test_a_tree_beats_the_chain_where_the_second_choice_is_right() -> None:
    chain = run(Draftsman())
    tree = run(BranchingSource(Draftsman(), 1, 0.9))
    assert cost(tree) < 0.85 * cost(chain)
    assert cost(tree) < 0.85
    assert tree.num_rounds < 0.8 * chain.num_rounds
    assert tree.num_accepted_tokens > chain.num_accepted_tokens


def test_more_branches_than_are_needed_cost_rows() -> None:
    one, four = (run(BranchingSource(Draftsman(), number, 0.9)) for number in (1, 4))
    assert one.num_rounds >= four.num_rounds
    assert cost(one) < cost(four)


def test_a_tree_loses_where_the_second_choice_is_wrong_too() -> None:
    chain = run(Draftsman(second_is_right=False))
    tree = run(BranchingSource(Draftsman(second_is_right=False), 2, 0.9))
    assert tree.num_rounds == chain.num_rounds
    assert tree.num_accepted_tokens == chain.num_accepted_tokens
    assert cost(tree) > cost(chain)


@pytest.mark.parametrize("threshold", [0.3, 0.9])
def test_a_draft_that_is_sure_grows_no_branches(threshold: float) -> None:
    assert run(BranchingSource(Draftsman(is_sure=True), 4, threshold)) == run(Draftsman(is_sure=True))


def test_branches_do_not_make_a_hopeless_draft_pay() -> None:
    source = {"kind": "tree", "chain": {"kind": "early_exit", "exit_layer": 2}, "max_branches": 4}
    engine = Engine(Target(hopeless(tiny_model("llama"))), plan=DraftPlan.model_validate({"source": source}))
    stats = engine.generate(PROMPT, GenerationSettings(max_new_tokens=60)).stats
    assert cost(stats) > 1.0
