from __future__ import annotations

import copy
from dataclasses import replace
from functools import reduce
from operator import add

import pytest
import torch
from tests.support.scored_traces import plain_traces
from tests.support.tiny_models import planted, tiny_model, tiny_target

from selfspec_calibrate import exit_heads
from selfspec_calibrate.exit_heads import fit_exit_heads
from selfspec_calibrate.folds import NUM_FOLDS, fold_arrays, folds, in_fold
from selfspec_calibrate.ridge import Gram
from selfspec_calibrate.scoring import Scorer
from selfspec_calibrate.trace import Trace
from selfspec_calibrate.trace_state import compute_states
from selfspec_runtime.drafts.early_exit import EarlyExitSpec, exit_head_name, factor_names
from selfspec_runtime.generation import GREEDY
from selfspec_runtime.target import Target


def fold_name(exit_layer: int, fold: int) -> str:
    return in_fold(exit_head_name(exit_layer), fold)


def kinds(names: str) -> list[Trace]:
    return [Trace(str(index), name, (1,), (2, 3)) for index, name in enumerate(names)]


def as_one_answer(trace: Trace) -> Trace:
    """The same text with every position but the first as a scored row."""
    return replace(trace, prompt_ids=trace.input_ids[:1], output_ids=(*trace.input_ids[1:], 0))


def test_folds_share_out_every_kind() -> None:
    split = folds(kinds("aaaabbbbcccc"))
    for start in (0, 4, 8):
        assert sorted(split[start : start + 4]) == list(range(NUM_FOLDS))
    assert sorted(folds(kinds("abcd"))) == list(range(NUM_FOLDS))
    assert sorted(folds(kinds("abab"))) == list(range(NUM_FOLDS))


def test_a_prompt_that_occurs_twice_is_in_one_fold() -> None:
    traces = kinds("aaaa")
    assert folds([*traces, replace(traces[1], output_ids=(7, 8))])[4] == folds(traces)[1]


def test_a_fold_sees_its_own_heads_under_the_plans_names() -> None:
    final, own, other = torch.zeros(1), torch.ones(1), torch.ones(2)
    arrays = {exit_head_name(3): final, fold_name(3, 1): own, fold_name(3, 0): other, exit_head_name(4): final}
    assert fold_arrays(arrays, 1)[exit_head_name(3)] is own
    assert fold_arrays(arrays, 2)[exit_head_name(3)] is final
    assert fold_arrays(arrays, 1)[exit_head_name(4)] is final


def test_heads_are_fitted_without_the_fold_that_they_score() -> None:
    """Another text in one trace changes every head but that with which the trace itself is scored."""
    target = tiny_target("llama")
    traces = plain_traces(target, num_traces=4)
    changed = [*traces[:-1], replace(traces[-1], prompt_ids=tuple(reversed(traces[-1].prompt_ids)))]
    before, after = (fit_exit_heads(target, each, [2], strengths=[0.1]) for each in (traces, changed))
    own = folds(traces)[-1]
    for fold in range(NUM_FOLDS):
        same = torch.equal(before.scoring[fold_name(2, fold)], after.scoring[fold_name(2, fold)])
        assert same == (fold == own)
    assert not torch.equal(before.final[exit_head_name(2)], after.final[exit_head_name(2)])


def test_the_final_head_is_the_ridge_solution_over_all_positions_but_the_first() -> None:
    target = tiny_target("qwen3")
    traces = plain_traces(target, num_traces=3)
    total: Gram | None = None
    for trace in traces:
        own = target.model(input_ids=torch.tensor([trace.input_ids]), output_hidden_states=True).hidden_states
        # The last hidden state that transformers gives is behind the final norm; the state's own is before it.
        (state,) = compute_states(target, [as_one_answer(trace)], GREEDY)
        gram = Gram.of(own[2][0, 1:], state.hidden[-1][0])
        total = gram if total is None else total + gram
    assert total is not None
    heads = fit_exit_heads(target, traces, [2], strengths=[0.3])
    torch.testing.assert_close(heads.final[exit_head_name(2)], total.fitted(0.3), atol=1e-4, rtol=1e-3)
    assert set(heads.final) == {exit_head_name(2)}
    assert set(heads.scoring) == {exit_head_name(2), *(fold_name(2, fold) for fold in set(folds(traces)))}


def test_the_strength_is_the_one_that_errs_least_on_held_out_prompts() -> None:
    target, traces, strengths = (
        tiny_target("llama"),
        plain_traces(tiny_target("llama"), num_traces=4),
        [1e-4, 0.3, 50.0],
    )
    states = compute_states(target, [as_one_answer(trace) for trace in traces], GREEDY)
    grams = [Gram.of(state.hidden[0][0], state.hidden[-1][0]) for state in states]
    held_out = grams[folds(traces).index(0)]
    rest = reduce(add, (gram for gram in grams if gram is not held_out))
    errors = {strength: held_out.error(rest.fitted(strength)) for strength in strengths}
    best = min(errors, key=errors.__getitem__)
    heads = fit_exit_heads(target, traces, [1], strengths=strengths)
    torch.testing.assert_close(heads.final[exit_head_name(1)], (rest + held_out).fitted(best), atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(heads.scoring[fold_name(1, 0)], rest.fitted(best), atol=1e-4, rtol=1e-3)
    assert errors[best] < 0.9 * max(errors.values())


def test_a_linear_tail_is_undone() -> None:
    """Where the layers behind the exit add nothing, the best map adds nothing, and the exit agrees everywhere."""
    target = Target(planted(tiny_model("llama"), exit_layer=2))
    traces = plain_traces(target, num_traces=2)
    heads = fit_exit_heads(target, traces, [2])
    assert float(heads.final[exit_head_name(2)].abs().max()) < 1e-4
    scorer = Scorer(target, compute_states(target, traces, GREEDY), GREEDY, heads.scoring)
    assert scorer.agreement(EarlyExitSpec(exit_layer=2, head="linear")) == 1.0


def test_layers_in_several_groups_give_the_same_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_target("llama")
    traces = plain_traces(target, num_traces=2)
    together = fit_exit_heads(target, traces, [1, 2, 3])
    monkeypatch.setattr(exit_heads, "GRAM_BYTES", 1)
    apart = fit_exit_heads(target, traces, [1, 2, 3])
    assert set(together.scoring) == set(apart.scoring)
    for name, head in together.scoring.items():
        torch.testing.assert_close(head, apart.scoring[name], atol=1e-5, rtol=1e-5)


def test_one_prompt_gives_no_heads() -> None:
    target = tiny_target("llama")
    trace = plain_traces(target, num_traces=1)[0]
    assert fit_exit_heads(target, [trace, trace], [2]).scoring == {}


def test_low_ranks_are_fitted_beside_or_instead_of_whole_heads() -> None:
    target, width = tiny_target("llama"), 64
    traces = plain_traces(target, num_traces=4)
    both = fit_exit_heads(target, traces, [2], strengths=[0.1], rank=width)
    alone = fit_exit_heads(target, traces, [2], strengths=[0.1], rank=7, whole=False)
    down, up = (both.final[name] for name in factor_names(2))
    torch.testing.assert_close(up @ down, both.final[exit_head_name(2)], atol=1e-4, rtol=1e-3)
    assert set(alone.final) == set(factor_names(2))
    for fold in range(NUM_FOLDS):
        cut_down, cut_up = (alone.scoring[in_fold(name, fold)] for name in factor_names(2))
        assert cut_down.shape == (7, width)
        assert cut_up.shape == (width, 7)
        whole = both.scoring[fold_name(2, fold)]
        assert float((cut_up @ cut_down - whole).norm()) < float(whole.norm())


def test_a_low_rank_head_is_scored_with_the_factors_of_other_prompts() -> None:
    target = Target(planted(tiny_model("llama"), exit_layer=2))
    traces = plain_traces(target, num_traces=4)
    heads = fit_exit_heads(target, traces, [2], rank=4)
    scorer = Scorer(target, compute_states(target, traces, GREEDY), GREEDY, heads.scoring)
    assert scorer.agreement(EarlyExitSpec(exit_layer=2, head="linear", rank=3)) == 1.0
    broken = {
        name: torch.randn_like(head) if name.endswith(f"down.fold{folds(traces)[0]}") else head
        for name, head in heads.scoring.items()
    }
    ups = {name: head + 1.0 for name, head in broken.items() if ".up" in name}
    scorer = Scorer(target, compute_states(target, traces, GREEDY), GREEDY, broken | ups)
    first, *others = scorer.scores(EarlyExitSpec(exit_layer=2, head="linear", rank=3))
    assert first.accept.mean() < 1.0
    assert all(scores.accept.mean() == 1.0 for scores in others)


def test_heads_are_kept_in_the_models_own_precision() -> None:
    target = Target(copy.deepcopy(tiny_model("llama")).to(torch.bfloat16))
    heads = fit_exit_heads(target, plain_traces(target, num_traces=2), [2], rank=3)
    assert {head.dtype for head in heads.scoring.values()} == {torch.bfloat16}
