"""Every draft source keeps the contract; what is its own is tested beside."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from tests.support.contracts import COMMITTED, DraftSourceContract, round_context
from tests.support.plans import exit_heads
from tests.support.tiny_models import tiny_target

from selfspec_runtime.controllers.confidence import ConfidenceController
from selfspec_runtime.draft_head import RANKS_NAME
from selfspec_runtime.drafts.draft import Draft
from selfspec_runtime.drafts.early_exit import EarlyExitSpec, exit_head_name, factor_names, fitted_exits
from selfspec_runtime.drafts.first_of import FirstOfSource, NgramFirstSpec
from selfspec_runtime.drafts.ngram import NgramSource, NgramSpec
from selfspec_runtime.drafts.source import DraftSource, RoundContext
from selfspec_runtime.errors import PlanError
from selfspec_runtime.sequence import Sequence

BAD_SKIPS = [{"attention": [4]}, {"mlp": [0, 9]}, {"attention": [-1]}]
MALFORMED_SKIPS = [{"attention": "3"}, {"mlp": [0.5]}, {"mlp": [True]}, {"heads": [1]}]


class TestEarlyExit(DraftSourceContract):
    source: ClassVar = {"kind": "early_exit", "exit_layer": 2}
    impossible: ClassVar = [{"kind": "early_exit", "exit_layer": 4}, {"kind": "early_exit", "exit_layer": 40}]
    malformed: ClassVar = [{"exit_layer": 0}, {"exit_layer": None}, {"head": "other"}]


class TestLinearExit(DraftSourceContract):
    source: ClassVar = {"kind": "early_exit", "exit_layer": 1, "head": "linear"}
    impossible: ClassVar = [{"kind": "early_exit", "exit_layer": 4, "head": "linear"}]
    malformed: ClassVar = [{"exit_layer": 0}]


class TestLowRankExitOfFewTokens(DraftSourceContract):
    source: ClassVar = {"kind": "early_exit", "exit_layer": 1, "head": "linear", "rank": 5, "vocab_size": 64}
    malformed: ClassVar = [{"rank": 0}, {"rank": 4, "head": "own"}, {"vocab_size": 0}]


class TestLayerSkip(DraftSourceContract):
    source: ClassVar = {"kind": "layer_skip", "skip": {"attention": [1, 3], "mlp": [3]}}
    impossible: ClassVar = [{"kind": "layer_skip", "skip": skip} for skip in BAD_SKIPS]
    malformed: ClassVar = [{"skip": skip} for skip in [None, *MALFORMED_SKIPS]]


class TestLayerSkipOfFewTokens(DraftSourceContract):
    source: ClassVar = {"kind": "layer_skip", "skip": {"attention": [1], "mlp": [3]}, "vocab_size": 50}
    malformed: ClassVar = [{"vocab_size": 0}, {"vocab_size": 1.5}]


class TestQuantized(DraftSourceContract):
    source: ClassVar = {"kind": "quantized", "skip": {"attention": [3]}}
    impossible: ClassVar = [{"kind": "quantized", "skip": skip} for skip in BAD_SKIPS]
    malformed: ClassVar = [
        {"format": "int3"},
        {"quantize_head": "perhaps"},
        *({"skip": skip} for skip in MALFORMED_SKIPS),
    ]


class TestQuantizedWithHead(TestQuantized):
    source: ClassVar = {"kind": "quantized", "quantize_head": True}


class TestQuantizedWithHeadOfFewTokens(TestQuantized):
    source: ClassVar = {"kind": "quantized", "quantize_head": True, "vocab_size": 64}


class TestNgram(DraftSourceContract):
    source: ClassVar = {"kind": "ngram"}
    draws = False
    malformed: ClassVar = [
        {"min_match": 0},
        {"min_match": 4, "max_match": 3},
        {"max_match": 17},
        {"num_draft_tokens": 0},
    ]


class TestSuffix(DraftSourceContract):
    source: ClassVar = {"kind": "suffix"}
    draws = False
    malformed: ClassVar = [
        {"min_match": 0},
        {"tokens_per_match": 0},
        {"min_probability": 1.1},
        {"num_draft_tokens": 65},
        {"corpus": "here"},
    ]


class TestSuffixWithCorpus(TestSuffix):
    source: ClassVar = {"kind": "suffix", "corpus": True, "num_draft_tokens": 4}

    def test_at_most_the_budget_is_drafted_and_something_is(self) -> None:  # type: ignore[override]
        assert [len(self.built().propose(round_context(budget=2, room=room))) for room in (20, 4, 3, 1)] == [4, 4, 3, 1]


class TestNgramFirst(DraftSourceContract):
    source: ClassVar = {"kind": "ngram_first", "then": {"kind": "early_exit", "exit_layer": 3}}
    draws = False
    impossible: ClassVar = [{"kind": "ngram_first", "then": entry} for entry in TestEarlyExit.impossible]
    malformed: ClassVar = [
        {"then": None},
        {"then": {"kind": "ngram"}},
        {"ngram": {"kind": "early_exit", "exit_layer": 1}},
    ]


class TestSuffixFirst(TestNgramFirst):
    source: ClassVar = {
        "kind": "ngram_first",
        "ngram": {"kind": "suffix", "min_match": 2},
        "then": {"kind": "early_exit", "exit_layer": 3},
    }

    def test_the_lookup_is_the_suffixs(self) -> None:
        draft = self.built().propose(round_context(budget=5))
        assert draft.origin == "suffix"
        assert draft.token_ids == COMMITTED[8:13]


class TestNgramFirstWithoutMatch(TestNgramFirst):
    source: ClassVar = {
        "kind": "ngram_first",
        "ngram": {"min_match": 16, "max_match": 16},
        "then": {"kind": "early_exit", "exit_layer": 3},
    }
    draws = True


def test_an_exit_hands_its_hidden_states_to_the_verification() -> None:
    target, context = tiny_target("llama"), round_context()
    draft = EarlyExitSpec(exit_layer=2).build(target, {}).propose(context)
    assert draft.prefix is not None
    assert draft.prefix.exit_layer == 2
    assert draft.num_passes == len(draft) == 4
    program, out = target.programs.exit_at(2)
    text = torch.tensor([*COMMITTED, *draft.token_ids[:-1]])
    target.advance(text, target.new_cache(), start=0, program=program)
    assert out.hidden is not None
    torch.testing.assert_close(draft.prefix.hidden, out.hidden[:, -4:], rtol=1e-4, atol=1e-4)


def test_a_linear_head_is_applied_to_the_hidden_state_and_counted() -> None:
    target, heads = tiny_target("llama"), exit_heads()
    spec = EarlyExitSpec(exit_layer=2, head="linear")
    source: ClassVar = spec.build(target, heads)
    assert source.extra_bytes == 64 * 64 * 4
    assert EarlyExitSpec(exit_layer=2).build(target, {}).extra_bytes == 0
    zero = {exit_head_name(2): torch.zeros(64, 64)}
    raw = EarlyExitSpec(exit_layer=2).build(target, {}).propose(round_context())
    assert spec.build(target, zero).propose(round_context()).token_ids == raw.token_ids
    laws = [s.propose(round_context()).probs[0] for s in (source, spec.build(target, zero))]
    assert not torch.allclose(*laws)  # type: ignore[arg-type]


def test_a_smaller_rank_is_a_beginning_of_the_fitted_one() -> None:
    target, heads = tiny_target("llama"), exit_heads()
    down, up = (heads[name] for name in factor_names(2))
    heads[exit_head_name(2)] = up[:, :3] @ down[:3]
    whole = EarlyExitSpec(exit_layer=2, head="linear").build(target, heads)
    cut = EarlyExitSpec(exit_layer=2, head="linear", rank=3).build(target, heads)
    for expected, probs in zip(*(source.propose(round_context()).probs for source in (whole, cut)), strict=True):
        torch.testing.assert_close(probs, expected)
    assert cut.extra_bytes == 2 * 3 * 64 * 4
    with pytest.raises(PlanError, match="fitted with rank 8, and the plan asks for 9"):
        EarlyExitSpec(exit_layer=2, head="linear", rank=9).build(target, heads)


def test_arrays_that_a_plan_needs_are_named() -> None:
    low_rank = EarlyExitSpec(exit_layer=2, head="linear", rank=3, vocab_size=9)
    assert low_rank.array_names() == (*factor_names(2), RANKS_NAME)
    assert EarlyExitSpec(exit_layer=2, head="linear").array_names() == (exit_head_name(2),)
    assert EarlyExitSpec(exit_layer=2).array_names() == ()
    assert NgramFirstSpec(then=low_rank).array_names() == low_rank.array_names()
    assert set(exit_heads()) >= set(low_rank.array_names())
    assert fitted_exits(exit_heads()) == (1, 2, 3)


def test_a_linear_head_that_was_not_fitted_is_refused() -> None:
    with pytest.raises(PlanError, match="linear head of exit layer 2 is missing"):
        EarlyExitSpec(exit_layer=2, head="linear").build(tiny_target("llama"), {exit_head_name(1): torch.zeros(64, 64)})


def test_a_copy_of_the_layers_and_the_head_is_made_once_per_target_and_counted() -> None:
    layers, both = TestQuantized.built(), TestQuantizedWithHead.built()
    target = tiny_target("llama")
    assert layers.extra_bytes == target.quantized_layers.num_bytes > 0
    assert both.extra_bytes == layers.extra_bytes + target.quantized_head.num_bytes > layers.extra_bytes


def test_an_unsure_draft_ends_with_the_unsure_token() -> None:
    context = replace(round_context(), controller=ConfidenceController(4, 1.0))
    assert len(EarlyExitSpec(exit_layer=2).build(tiny_target("llama"), {}).propose(context)) == 1


def test_a_lookup_drafts_what_followed_and_costs_no_pass() -> None:
    draft = NgramSource(1, 3).propose(round_context(budget=5))
    assert draft.token_ids == COMMITTED[8:13]
    assert draft.num_passes == 0
    assert draft.prefix is None


@pytest.mark.parametrize(("own", "room", "drafted"), [(6, 20, 6), (6, 3, 3), (1, 20, 1)])
def test_a_lookup_with_a_limit_of_its_own_keeps_to_it_and_to_what_fits(own: int, room: int, drafted: int) -> None:
    context = round_context(budget=2, room=room)
    assert len(NgramSpec(num_draft_tokens=own).build(tiny_target("llama"), {}).propose(context)) == drafted


def test_a_lookup_follows_a_text_that_grows_and_one_that_is_another() -> None:
    source, context = NgramSource(2, 2), round_context()

    def drafted(ids: list[int]) -> list[int]:
        return source.propose(replace(context, sequence=Sequence(ids, device=torch.device("cpu")))).token_ids

    assert drafted([5, 6, 7, 5, 6]) == [7, 5, 6]
    assert drafted([5, 6, 7, 5, 6, 8, 5, 6]) == [8, 5, 6]
    assert drafted([1, 2, 3, 1, 2]) == [3, 1, 2]
    assert drafted([5, 6]) == []


class Scripted(DraftSource):
    """Proposes what it was told and notes what it hears."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids
        self.heard: list[str] = []

    def propose(self, context: RoundContext) -> Draft:
        self.heard.append("propose")
        return Draft(token_ids=list(self.ids), probs=[None] * len(self.ids))

    def observe(self, draft: Draft, *, num_accepted: int) -> None:
        self.heard.append(f"observe {num_accepted}")

    def reset(self) -> None:
        self.heard.append("reset")

    @property
    def extra_bytes(self) -> int:
        return 10


def test_the_first_source_that_drafts_something_is_taken_and_all_hear_of_it() -> None:
    sources = (Scripted([]), Scripted([1, 2]), Scripted([3]))
    first = FirstOfSource(sources)
    draft = first.propose(round_context())
    first.observe(draft, num_accepted=1)
    first.reset()
    assert draft.token_ids == [1, 2]
    assert [source.heard for source in sources] == [
        ["propose", "observe 1", "reset"],
        ["propose", "observe 1", "reset"],
        ["observe 1", "reset"],
    ]
    assert first.extra_bytes == 30
    assert len(FirstOfSource((Scripted([]),)).propose(round_context())) == 0
