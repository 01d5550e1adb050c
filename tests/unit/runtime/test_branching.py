"""Side branches: where they are drafted, which are kept, and what a draft without them still is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, cast

import pytest
import torch
from tests.support.contracts import COMMITTED, SAMPLED, DraftSourceContract, round_context
from tests.support.plans import exit_heads
from tests.support.tiny_models import CONTEXT, VOCAB_SIZE, build_model, prompt_ids, tiny_config, tiny_target
from torch import Tensor

from selfspec_runtime.draft_watch import WatchedSource
from selfspec_runtime.drafts.branching import BranchingSource, BranchingSpec
from selfspec_runtime.drafts.draft import Draft
from selfspec_runtime.drafts.early_exit import EarlyExitSpec
from selfspec_runtime.drafts.source import DraftSource, RoundContext
from selfspec_runtime.errors import PlanError
from selfspec_runtime.plan import DraftPlan
from selfspec_runtime.sampling import SamplingSettings
from selfspec_runtime.target import Target
from selfspec_runtime.tracing import exit_layer_of

EXIT = {"kind": "early_exit", "exit_layer": 2}
GREEDY = SamplingSettings()


class TestTree(DraftSourceContract):
    source: ClassVar = {"kind": "tree", "chain": EXIT, "max_branches": 3, "branch_threshold": 1.0}
    impossible: ClassVar = [{"kind": "tree", "chain": {"kind": "early_exit", "exit_layer": 4}}]
    malformed: ClassVar = [
        {"chain": None},
        {"chain": {"kind": "ngram"}},
        {"max_branches": 0},
        {"max_branches": 17},
        {"branch_threshold": 0.0},
        {"branch_threshold": 1.1},
    ]


class TestTreeOverASkipSet(TestTree):
    source: ClassVar = {"kind": "tree", "chain": {"kind": "layer_skip", "skip": {"attention": [1, 3], "mlp": [3]}}}


class TestTreeOverLookupFirst(TestTree):
    source: ClassVar = {"kind": "tree", "chain": {"kind": "ngram_first", "then": EXIT}}
    draws = False


class Scripted(DraftSource):
    """Chooses from given logits, one row for each place."""

    def __init__(self, rows: list[dict[int, float]]) -> None:
        self.rows = rows
        self.heard: list[int] = []

    def propose(self, context: RoundContext) -> Draft:
        draft = Draft(origin="scripted")
        for row in self.rows[: context.budget]:
            choice = context.rule.choose(logits_of(row), context.sequence, draft.token_ids)
            draft.append(choice.token_id, choice.probs)
        return draft

    def observe(self, draft: Draft, *, num_accepted: int) -> None:
        self.heard.append(num_accepted)


def logits_of(probs: dict[int, float]) -> Tensor:
    """Logits of a law that gives these tokens these probabilities, and the others what is left."""
    rest = (1 - sum(probs.values())) / (VOCAB_SIZE - len(probs))
    law = torch.full((1, VOCAB_SIZE), rest)
    law[0, list(probs)] = torch.tensor(list(probs.values()))
    return law.log()


def branches(
    rows: list[dict[int, float]],
    *,
    max_branches: int = 8,
    threshold: float = 0.8,
    settings: SamplingSettings = GREEDY,
    **context: Any,
) -> list[tuple[int, int]]:
    """Place and token of each branch of a scripted chain."""
    source = BranchingSource(Scripted(rows), max_branches, threshold)
    return [(b.place, b.token_id) for b in source.propose(round_context(settings, **context)).branches]


SURE, UNSURE = {9: 0.95}, {5: 0.6, 6: 0.3, 7: 0.09}


def test_branches_grow_only_where_the_draft_is_unsure() -> None:
    assert branches([SURE, SURE, SURE]) == []
    assert branches([SURE, UNSURE, SURE], max_branches=2) == [(1, 6), (1, 7)]
    assert branches([UNSURE], threshold=0.6) == []
    assert branches([UNSURE], threshold=0.601, max_branches=1) == [(0, 6)]


def test_the_branches_that_are_likeliest_to_be_needed_are_kept() -> None:
    # Place 0 goes wrong with probability 0.3 by token 6; place 1 is reached with 0.6 only.
    early, late = UNSURE, {15: 0.5, 16: 0.4, 17: 0.06}
    assert branches([early, late], max_branches=1) == [(0, 6)]
    assert branches([early, late], max_branches=3) == [(0, 6), (1, 16), (0, 7)]
    assert branches([SURE, late], max_branches=1) == [(1, 16)]


def test_no_branch_is_the_chains_own_token_or_twice_the_same() -> None:
    for seed in range(20):
        settings = replace(SAMPLED, seed=seed)
        source = BranchingSource(Scripted([UNSURE, UNSURE]), 6, 1.0)
        draft = source.propose(round_context(settings))
        found = [(b.place, b.token_id) for b in draft.branches]
        assert len(set(found)) == len(found) == 6
        assert not set(found) & set(enumerate(draft.token_ids))


@pytest.mark.parametrize("mode", ["rejection", "match"])
def test_a_token_that_the_filters_leave_out_gets_no_branch(mode: Any) -> None:
    for seed in range(10):
        settings = SamplingSettings(1.0, top_k=2, seed=seed, mode=mode)
        source = BranchingSource(Scripted([UNSURE]), 8, 1.0)
        draft = source.propose(round_context(settings))
        assert {draft.token_ids[0], *(b.token_id for b in draft.branches)} == {5, 6}


def test_in_match_mode_the_noise_of_the_position_ranks_the_branches() -> None:
    flat = {token: 0.1 for token in range(10, 19)}
    settings = SamplingSettings(1.0, mode="match", seed=4)
    source = BranchingSource(Scripted([flat]), 3, 1.0)
    draft = source.propose(round_context(settings))
    context = round_context(settings)
    scores = context.rule.scores(logits_of(flat), context.sequence, [])
    ranked = scores.topk(4).indices.tolist()
    assert [draft.token_ids[0], *(b.token_id for b in draft.branches)] == ranked


def test_a_branch_tells_its_probability_in_the_drafts_own_law() -> None:
    source = WatchedSource(BranchingSource(Scripted([UNSURE, SURE]), 2, 0.8))
    draft = source.propose(round_context(GREEDY))
    assert [b.prob for b in draft.branches] == pytest.approx([0.3, 0.09], abs=1e-4)
    assert source.probs == pytest.approx((0.6, 0.95, 0.3, 0.09), abs=1e-4)


def test_a_law_that_is_no_number_gets_no_branches() -> None:
    rows = [UNSURE, UNSURE]
    source = BranchingSource(Scripted(rows), 4, 1.0)
    rule = round_context(GREEDY).rule

    class Broken(type(rule)):  # type: ignore[misc]
        def scores(self, logits: Tensor, sequence: Any, drafted: list[int]) -> Tensor:
            return torch.full_like(logits[0], torch.nan)

    draft = source.propose(replace(round_context(GREEDY), rule=Broken(rule)))
    assert (len(draft), draft.branches) == (2, ())


class OtherTokens(Scripted):
    """Drops what it chose, as a composition may, and proposes something else."""

    def propose(self, context: RoundContext) -> Draft:
        super().propose(context)
        return Draft(token_ids=[1, 2], probs=[None, None])


def test_what_was_chosen_and_not_proposed_gets_no_branches() -> None:
    draft = BranchingSource(OtherTokens([UNSURE, UNSURE]), 4, 1.0).propose(round_context(GREEDY))
    assert (draft.token_ids, draft.branches) == ([1, 2], ())


@pytest.mark.parametrize(("left", "fitting"), [(2, 1), (3, 1), (4, 2), (5, 3), (50, 4)])
def test_branches_fit_into_the_context_behind_the_chain(left: int, fitting: int) -> None:
    ids = (COMMITTED * 40)[: CONTEXT - left]
    found = branches([UNSURE, UNSURE], max_branches=4, ids=ids, budget=min(2, left - 1), room=left - 1)
    assert len(found) == fitting


def test_a_lookup_gets_no_branches_and_passes_behind_it_do() -> None:
    lookup = BranchingSpec.model_validate({**TestTreeOverLookupFirst.source, "branch_threshold": 1.0})
    source = lookup.build(tiny_target("llama"), {})
    found = source.propose(round_context())
    assert (found.origin, found.branches) == ("ngram", ())
    passed = source.propose(round_context(ids=prompt_ids(9, seed=77)))
    assert passed.origin == "early_exit"
    assert len(passed.branches) == 2


def test_the_chain_is_the_one_that_is_drafted_without_branches() -> None:
    chain = EarlyExitSpec(exit_layer=2).build(tiny_target("llama"), {})
    for settings in (GREEDY, SAMPLED, replace(SAMPLED, mode="match")):
        alone = chain.propose(round_context(settings))
        branched = BranchingSource(chain, 3, 1.0).propose(round_context(settings))
        assert branched.token_ids == alone.token_ids
        assert branched.prefix is not None
        assert alone.prefix is not None
        assert torch.equal(branched.prefix.hidden, alone.prefix.hidden)
        assert len(branched.branches) == 3


def test_the_chains_source_hears_what_stood_of_it_and_is_reset() -> None:
    chain = Scripted([SURE])
    source = BranchingSource(chain, 2, 0.5)
    source.observe(Draft(), num_accepted=1)
    source.reset()
    assert chain.heard == [1]
    assert source.overhead == chain.overhead
    linear = BranchingSpec.model_validate({"chain": {**EXIT, "head": "linear"}})
    assert linear.array_names() == linear.chain.array_names() != ()
    assert linear.build(tiny_target("llama"), exit_heads()).extra_bytes == 64 * 64 * 4


def test_a_model_that_takes_no_positions_is_refused() -> None:
    spec = cast("BranchingSpec", DraftPlan.model_validate({"source": TestTree.source}).source)
    with pytest.raises(PlanError, match=r"MptForCausalLM cannot verify a tree.*use the plan's chain"):
        spec.build(tiny_target("mpt"), {})


@pytest.mark.parametrize(
    ("kind", "window", "refused"), [("local", 16, True), ("global", 16, False), ("local", CONTEXT, False)]
)
def test_a_model_whose_attention_counts_a_window_in_slots_is_refused(kind: str, window: int, refused: bool) -> None:
    layout = {"num_layers": 4, "num_heads": 4, "attention_types": [[["global", kind], 2]], "window_size": window}
    target = Target(build_model(tiny_config("gpt_neo", **layout), attention="eager"))
    assert target.takes_trees != refused
    spec = cast("BranchingSpec", DraftPlan.model_validate({"source": TestTree.source}).source)
    if not refused:
        assert spec.build(target, {}).max_branches == spec.max_branches
        return
    with pytest.raises(PlanError, match=r"GPTNeoForCausalLM cannot verify a tree: .* counts slots of the cache"):
        spec.build(target, {})


@pytest.mark.parametrize(("chain", "widest"), [(EXIT, 6), ({"kind": "ngram_first", "then": EXIT}, 6)])
def test_a_plan_counts_branches_among_the_tokens_of_a_round(chain: dict[str, Any], widest: int) -> None:
    plan = DraftPlan.model_validate({"source": {"kind": "tree", "chain": chain, "max_branches": 2}})
    assert (plan.max_branches, plan.max_draft_tokens) == (2, widest)
    limited = {"kind": "ngram_first", "ngram": {"num_draft_tokens": 9}, "then": EXIT}
    assert DraftPlan.model_validate({"source": {"kind": "tree", "chain": limited}}).max_draft_tokens == 11
    assert DraftPlan.model_validate({"source": chain}).max_branches == 0
    assert plan.describe().endswith("with 2 branches below 0.60, 4 drafts")
    assert exit_layer_of(plan) == 2


def test_a_plans_parts_are_found_however_deep_they_lie() -> None:
    spec = BranchingSpec.model_validate({"chain": {"kind": "ngram_first", "then": EXIT}})
    assert [part.kind for part in spec.parts()] == ["tree", "ngram_first", "ngram", "early_exit"]  # type: ignore[attr-defined]
