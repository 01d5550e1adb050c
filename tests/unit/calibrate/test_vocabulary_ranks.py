from __future__ import annotations

import pytest
import torch
from tests.support.scored_traces import plain_traces
from tests.support.tiny_models import VOCAB_SIZE, tiny_target

from selfspec_calibrate.folds import folds, in_fold
from selfspec_calibrate.scoring import Scorer
from selfspec_calibrate.trace import Trace
from selfspec_calibrate.trace_state import compute_states
from selfspec_calibrate.vocabulary_ranks import fit_vocabulary_ranks, rank_tokens, vocab_sizes
from selfspec_runtime.draft_head import RANKS_NAME
from selfspec_runtime.drafts.early_exit import EarlyExitSpec
from selfspec_runtime.drafts.skipped import LayerSkipSpec
from selfspec_runtime.generation import GREEDY
from selfspec_runtime.layer_skip import LayerSkipSet

TRACES = [
    Trace("a", "test", (5, 5, 5, 6), (7, 7, 8)),
    Trace("b", "test", (6, 1), (8, 8, 3)),
]


def test_what_was_said_comes_before_what_was_read_and_that_before_the_rest() -> None:
    assert rank_tokens(TRACES, 10) == [8, 7, 3, 5, 6, 1, 0, 2, 4, 9]
    assert rank_tokens(TRACES, 10, always=[9, 7]) == [9, 7, 8, 3, 5, 6, 1, 0, 2, 4]


def test_ranks_of_a_fold_come_from_other_prompts() -> None:
    fitted = fit_vocabulary_ranks(TRACES, 10, always=[9], most=4)
    first, second = folds(TRACES)
    assert fitted.final[RANKS_NAME].tolist() == [9, 8, 7, 3]
    assert fitted.scoring[in_fold(RANKS_NAME, first)].tolist() == [9, 8, 3, 1]
    assert fitted.scoring[in_fold(RANKS_NAME, second)].tolist() == [9, 7, 8, 5]
    assert fitted.final[RANKS_NAME].dtype == torch.int32


def test_an_exact_draft_of_few_tokens_agrees_as_often_as_they_cover() -> None:
    """Skipping nothing leaves the head as the only difference, and greedy acceptance is then a matter of coverage."""
    target = tiny_target("llama")
    traces = plain_traces(target, num_traces=4)
    ranks = fit_vocabulary_ranks(traces, VOCAB_SIZE, most=64)
    scorer = Scorer(target, compute_states(target, traces, GREEDY), GREEDY, ranks.scoring)
    spec = LayerSkipSpec(skip=LayerSkipSet(), vocab_size=16)
    kept = {fold: set(ranks.scoring[in_fold(RANKS_NAME, fold)][:16].tolist()) for fold in folds(traces)}
    said = [
        token in kept[fold] for trace, fold in zip(traces, folds(traces), strict=True) for token in trace.output_ids[1:]
    ]
    assert scorer.agreement(spec) == pytest.approx(sum(said) / len(said))
    assert 0.0 < scorer.agreement(spec) < 1.0


def test_more_tokens_agree_at_least_as_often() -> None:
    target = tiny_target("qwen3")
    traces = plain_traces(target, num_traces=4)
    scoring = fit_vocabulary_ranks(traces, VOCAB_SIZE, most=VOCAB_SIZE).scoring
    scorer = Scorer(target, compute_states(target, traces, GREEDY), GREEDY, scoring)
    found = [scorer.agreement(EarlyExitSpec(exit_layer=3, vocab_size=size)) for size in (8, 32, VOCAB_SIZE)]
    assert found == sorted(found)
    assert found[-1] == scorer.agreement(EarlyExitSpec(exit_layer=3))


@pytest.mark.parametrize(
    ("vocab_size", "sizes"),
    [(49152, (1536, 3072, 6144, 12288)), (151_936, (4736, 9472, 18_992 // 64 * 64 + 64, 37_984 // 64 * 64)), (50, ())],
)
def test_sizes_are_shares_in_whole_tiles(vocab_size: int, sizes: tuple[int, ...]) -> None:
    found = vocab_sizes(vocab_size)
    assert len(found) == len(sizes)
    assert all(size % 64 == 0 for size in found)
    assert all(abs(size - wanted) <= 64 for size, wanted in zip(found, sizes, strict=True))
