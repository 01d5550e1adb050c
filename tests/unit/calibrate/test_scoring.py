from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from tests.support.scored_traces import plain_traces, tiny_states
from tests.support.tiny_models import planted_skip, tiny_model, tiny_target
from torch import Tensor

from selfspec_calibrate import scoring
from selfspec_calibrate.folds import folds, in_fold
from selfspec_calibrate.scoring import Scorer, TokenScores, block_logits
from selfspec_calibrate.trace import Trace
from selfspec_calibrate.trace_state import TraceState, compute_states
from selfspec_runtime.acceptance import Verdict
from selfspec_runtime.controllers.confidence import ConfidenceSpec
from selfspec_runtime.drafts.draft import Draft
from selfspec_runtime.drafts.early_exit import EarlyExitSpec, exit_head_name
from selfspec_runtime.drafts.first_of import NgramFirstSpec
from selfspec_runtime.drafts.ngram import NgramSpec
from selfspec_runtime.drafts.passes import PassSource
from selfspec_runtime.drafts.quantized import QuantizedSpec
from selfspec_runtime.drafts.registry import AnySourceSpec
from selfspec_runtime.drafts.skipped import LayerSkipSpec
from selfspec_runtime.drafts.source import RoundContext
from selfspec_runtime.errors import PlanError
from selfspec_runtime.generation import GREEDY
from selfspec_runtime.law import token_probs
from selfspec_runtime.layer_skip import LayerSkipSet
from selfspec_runtime.processors import Processors
from selfspec_runtime.rules import AcceptanceRule, Choice, make_rule
from selfspec_runtime.sampling import SamplingSettings
from selfspec_runtime.sequence import Sequence
from selfspec_runtime.target import Target

FAMILIES = ("llama", "qwen3", "mistral", "gemma3_text", "gpt2")
ARRAYS = {exit_head_name(2): torch.randn(64, 64, generator=torch.Generator().manual_seed(3)) / 16}
SKIP_EARLY = LayerSkipSpec(skip=LayerSkipSet(attention=[0, 1], mlp=[0, 2]))
SKIP_LATE = LayerSkipSpec(skip=LayerSkipSet(attention=[2], mlp=[3]))
SPECS: list[AnySourceSpec] = [
    EarlyExitSpec(exit_layer=1),
    EarlyExitSpec(exit_layer=2),
    EarlyExitSpec(exit_layer=2, head="linear"),
    SKIP_EARLY,
    SKIP_LATE,
]


@dataclass
class Drafted:
    """What a source's own draft passes gave, one per scored row."""

    source: PassSource
    logits: list[Tensor] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)


class ListeningRule(AcceptanceRule):
    """Lets another rule choose and notes what from."""

    def __init__(self, rule: AcceptanceRule, drafted: Drafted) -> None:
        self.rule, self.drafted = rule, drafted

    def choose(
        self, logits: Tensor, sequence: Sequence, drafted: list[int], *, wants_confidence: bool = False
    ) -> Choice:
        choice = self.rule.choose(logits, sequence, drafted, wants_confidence=wants_confidence)
        self.drafted.logits.append(logits[0].clone())
        self.drafted.choices.append(choice)
        return choice

    def _draw(self, logits: Tensor, position: int, *, round_start: int) -> tuple[int, Tensor | None]:
        raise AssertionError

    def _decide(self, draft: Draft, logits: Tensor, position: int) -> Verdict:
        raise AssertionError


def really_drafted(
    target: Target, specs: Iterable[AnySourceSpec], state: TraceState, sampling: SamplingSettings
) -> list[Drafted]:
    """Every source drafts one token at every scored row, over a real cache that the target puts right after it."""
    ids = torch.tensor(state.trace.input_ids)
    cache, controller = target.new_cache(), ConfidenceSpec().build()
    target.logits(ids[: len(state.trace.prompt_ids)], cache, start=0)
    sources = [spec.build(target, ARRAYS) for spec in specs]
    drafted = [Drafted(source) for source in sources if isinstance(source, PassSource)]
    for position in range(len(state.trace.prompt_ids), len(ids)):
        cache.length = position
        sequence = Sequence(ids[: position + 1].tolist(), device=torch.device("cpu"))
        for each in drafted:
            rule = ListeningRule(make_rule(sampling, Processors()), each)
            each.source.propose(RoundContext(sequence, cache, rule, controller, budget=1, room=9))
        target.logits(ids[position : position + 1], cache, start=position)
    return drafted


def assert_equal_scores(scores: TokenScores, drafted: Drafted, state: TraceState, *, atol: float) -> None:
    logits = torch.stack(drafted.logits)
    best = logits.topk(2, dim=1).values
    clear = (best[:, 0] - best[:, 1] > 2 * atol).numpy()
    said = np.array([choice.token_id for choice in drafted.choices]) == np.array(state.trace.output_ids[1:])
    np.testing.assert_array_equal(scores.accept[clear], said[clear])
    assert clear.sum() > len(clear) / 2
    np.testing.assert_allclose(scores.confidence, [choice.confidence for choice in drafted.choices], atol=atol)
    assert scores.accept.dtype == scores.confidence.dtype == np.float32


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_equal_what_decoding_meets(family: str) -> None:
    target, state = tiny_target(family), tiny_states(family)[1]
    scorer = Scorer(target, [state], GREEDY, ARRAYS)
    for spec, drafted in zip(SPECS, really_drafted(target, SPECS, state, GREEDY), strict=True):
        logits = block_logits(target, state, drafted.source.program)
        torch.testing.assert_close(logits, torch.stack(drafted.logits), rtol=0, atol=1e-4)
        assert_equal_scores(scorer.scores(spec)[0], drafted, state, atol=1e-4)


@pytest.mark.parametrize("family", ["qwen3", "mistral"])
def test_scores_of_a_quantised_copy_equal_what_decoding_meets(family: str) -> None:
    target, state = tiny_target(family), tiny_states(family)[1]
    specs = [QuantizedSpec(), QuantizedSpec(quantize_head=True, skip=LayerSkipSet(mlp=[1]))]
    scorer = Scorer(target, [state], GREEDY, {})
    for spec, drafted in zip(specs, really_drafted(target, specs, state, GREEDY), strict=True):
        # bitsandbytes multiplies one row by another kernel than several, on some processors in bfloat16.
        assert_equal_scores(scorer.scores(spec)[0], drafted, state, atol=0.05)


def test_a_plain_skipped_forward_would_score_another_draft() -> None:
    target, state = tiny_target("llama"), tiny_states("llama")[0]
    program = target.programs.without(LayerSkipSet(attention=[1], mlp=[0]))
    ids = torch.tensor(state.trace.input_ids)
    own = target.logits(ids, target.new_cache(), start=0, program=program, keep=state.num_rows)
    assert (block_logits(target, state, program) - own).abs().max() > 1e-2


def test_another_head_is_used_where_the_pass_resumes() -> None:
    target, state = tiny_target("llama"), tiny_states("llama")[0]
    own, skip = target.parts.head, LayerSkipSet(mlp=[3])
    assert isinstance(own, torch.nn.Linear)
    twice = torch.nn.Linear(own.in_features, own.out_features, bias=False)
    twice.weight = torch.nn.Parameter(2 * own.weight, requires_grad=False)
    other = block_logits(target, state, target.programs.without(skip, head=twice))
    torch.testing.assert_close(other, 2 * block_logits(target, state, target.programs.without(skip)))


def test_scoring_leaves_the_states_as_they_were() -> None:
    target, states = tiny_target("llama"), tiny_states("llama")
    first = Scorer(target, states, GREEDY, ARRAYS).scores(SKIP_EARLY)
    for spec in SPECS:
        Scorer(target, states, GREEDY, ARRAYS).scores(spec)
    again = Scorer(target, states, GREEDY, ARRAYS).scores(SKIP_EARLY)
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a.confidence, b.confidence)


def test_skipping_nothing_agrees_everywhere_and_planted_sublayers_are_free() -> None:
    model = planted_skip(tiny_model("llama"), attention=[1], mlp=[2])
    target = Target(model)
    scorer = Scorer(target, compute_states(target, plain_traces(target), GREEDY), GREEDY, {})
    assert scorer.agreement(LayerSkipSpec(skip=LayerSkipSet())) == 1.0
    assert scorer.agreement(LayerSkipSpec(skip=LayerSkipSet(attention=[1], mlp=[2]))) == 1.0
    assert scorer.agreement(LayerSkipSpec(skip=LayerSkipSet(attention=[0], mlp=[1]))) < 0.9


def test_sampled_acceptance_is_the_overlap_of_both_laws() -> None:
    sampling = SamplingSettings(temperature=0.8, top_p=0.9, seed=5)
    target, state = tiny_target("qwen3"), tiny_states("qwen3", sampling=sampling)[0]
    (drafted,) = really_drafted(target, [SKIP_LATE], state, sampling)
    (scores,) = Scorer(target, [state], sampling, {}).scores(SKIP_LATE)
    ids = torch.tensor(state.trace.input_ids)
    target_probs = token_probs(target.logits(ids, target.new_cache(), start=0)[-state.num_rows :], sampling)
    overlap = torch.minimum(target_probs, token_probs(torch.stack(drafted.logits), sampling)).sum(dim=1)
    np.testing.assert_allclose(scores.accept, overlap.numpy(), atol=1e-4)
    assert 0 < scores.accept.mean() < 1


def test_each_trace_is_scored_with_the_head_that_was_fitted_without_it() -> None:
    target, states = tiny_target("llama"), tiny_states("llama")
    first, second = folds([state.trace for state in states])
    assert first != second
    spec, name = EarlyExitSpec(exit_layer=2, head="linear"), exit_head_name(2)
    zero, other = torch.zeros(64, 64), ARRAYS[name]
    arrays = {name: zero, in_fold(name, first): other, in_fold(name, second): zero}
    mixed = Scorer(target, states, GREEDY, arrays).scores(spec)
    raw = Scorer(target, states, GREEDY, {name: zero}).scores(spec)
    moved = Scorer(target, states, GREEDY, {name: other}).scores(spec)
    np.testing.assert_array_equal(mixed[0].confidence, moved[0].confidence)
    np.testing.assert_array_equal(mixed[1].confidence, raw[1].confidence)
    assert (moved[0].confidence != raw[0].confidence).any()


def test_a_spec_is_scored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_target("llama")
    scorer = Scorer(target, tiny_states("llama"), GREEDY, {})
    scores = scorer.scores(EarlyExitSpec(exit_layer=3))
    monkeypatch.setattr(Target, "logits", None)
    assert scorer.scores(EarlyExitSpec(exit_layer=3)) is scores


@pytest.mark.parametrize("spec", [NgramSpec(), NgramFirstSpec(then=EarlyExitSpec(exit_layer=1))])
def test_lookups_are_refused(spec: AnySourceSpec) -> None:
    with pytest.raises(PlanError, match="replayed from the tokens"):
        Scorer(tiny_target("llama"), tiny_states("llama"), GREEDY, {}).scores(spec)


def test_a_trace_of_one_token_has_no_rows() -> None:
    target = tiny_target("llama")
    states = compute_states(target, [Trace("a", "k", (5, 6, 7), (9,)), *plain_traces(target, num_traces=1)], GREEDY)
    scorer = Scorer(target, states, GREEDY, {})
    empty, full = scorer.scores(EarlyExitSpec(exit_layer=3))
    assert (len(empty.accept), len(empty.confidence), states[0].num_bytes) == (0, 0, states[0].cache.num_bytes)
    assert len(full.accept) == scorer.num_rows == states[1].num_rows
    assert scorer.agreement(EarlyExitSpec(exit_layer=3)) == pytest.approx(full.accept.mean())
    assert Scorer(target, states[:1], GREEDY, {}).agreement(EarlyExitSpec(exit_layer=3)) == 0.0


def test_the_memory_of_logits_is_given_back_once_for_each_scored_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    trims: list[int] = []
    monkeypatch.setattr(scoring, "return_freed_memory", lambda: trims.append(1))
    target = tiny_target("llama")
    scorer = Scorer(target, compute_states(target, plain_traces(target), GREEDY), GREEDY, {})
    for spec in (EarlyExitSpec(exit_layer=1), EarlyExitSpec(exit_layer=2), EarlyExitSpec(exit_layer=1)):
        scorer.scores(spec)
    assert len(trims) == 2
