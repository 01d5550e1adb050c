"""The law: transformers' own, row by row the same bits in any batch, and defined where logits are not numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from selfspec_runtime.errors import NumericalError, UsageError
from selfspec_runtime.law import argmax_tokens, greedy_tokens, lowest_argmax, token_probs
from selfspec_runtime.sampling import SamplingSettings

NAN, INF = float("nan"), float("inf")
NO_IDS = torch.empty((0, 0), dtype=torch.long)

# Wide rows reach the path over the largest logits alone, narrow ones and tied ones the path over whole rows.
vocab_sizes = st.sampled_from([1, 2, 5, 50, 600, 2_000, 20_000])
sampling = st.builds(
    SamplingSettings,
    temperature=st.sampled_from([1e-3, 0.3, 0.7, 1.0, 2.5]),
    top_k=st.sampled_from([None, 1, 3, 50, 10**6]),
    top_p=st.sampled_from([None, 1e-6, 0.3, 0.8, 0.95, 1.0]),
    min_p=st.sampled_from([None, 0.0, 0.1, 0.9]),
)
logits_seeds = st.integers(0, 2**31)
# Multiples of the grid tie with each other: many at 1.0, nearly none at 0.
grids = st.sampled_from([0.0, 0.125, 1.0])


def _logits(seed: int, vocab_size: int, grid: float, *, num_rows: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_rows, vocab_size, generator=generator) * 3
    return (logits / grid).round() * grid if grid else logits


def _transformers_law(logits: Tensor, asked: SamplingSettings) -> Tensor:
    scores = TemperatureLogitsWarper(asked.temperature)(NO_IDS, logits.float())
    if asked.top_k is not None:
        scores = TopKLogitsWarper(asked.top_k)(NO_IDS, scores)
    if asked.top_p is not None and asked.top_p < 1:
        scores = TopPLogitsWarper(asked.top_p)(NO_IDS, scores)
    if asked.min_p is not None:
        scores = MinPLogitsWarper(asked.min_p)(NO_IDS, scores)
    return scores.softmax(dim=-1)


@settings(deadline=None, derandomize=True, max_examples=400)
@given(seed=logits_seeds, vocab_size=vocab_sizes, grid=grids, asked=sampling)
def test_the_law_is_that_of_transformers_warpers(
    seed: int, vocab_size: int, grid: float, asked: SamplingSettings
) -> None:
    logits = _logits(seed, vocab_size, grid)
    probs = token_probs(logits, asked)
    expected = _transformers_law(logits, asked)
    assert probs.dtype == torch.float32
    # Total variation; float32 sums in another order may move a tiny token across the edge of top-p.
    assert float((probs.sort().values - expected.sort().values).abs().sum(dim=-1).max()) < 2e-5
    for row in range(3):
        # Which of several equal tokens at the edge of top-p are kept is all that may differ.
        moved = logits[row, (probs[row] - expected[row]).abs() > 1e-5]
        assert moved.numel() == 0 or moved.min() == moved.max()


def test_of_tokens_that_tie_at_the_edge_of_top_p_the_higher_ids_are_kept() -> None:
    for vocab_size in (4, 100, 40_000):
        logits = torch.full((1, vocab_size), -INF)
        logits[0, -4:] = 0.0
        probs = token_probs(logits, SamplingSettings(1.0, top_p=0.5))
        assert probs[0, -4:].tolist() == [0.0, 0.0, 0.5, 0.5]


@pytest.mark.parametrize("vocab_size", [5, 1_000])
def test_all_tokens_that_tie_with_the_kth_largest_are_kept(vocab_size: int) -> None:
    logits = torch.zeros(1, vocab_size)
    logits[0, 2] = 1.0
    logits[0, 3:] = -1.0
    probs = token_probs(logits, SamplingSettings(1.0, top_k=2))
    assert probs.nonzero()[:, 1].tolist() == [0, 1, 2]


def test_more_ties_than_the_candidates_hold_are_kept_too() -> None:
    logits = torch.zeros(2, 1_000)
    logits[0, 7] = 5.0
    logits[1, :4] = torch.tensor([5.0, 4.0, 3.0, 2.0])
    probs = token_probs(logits, SamplingSettings(1.0, top_k=4))
    assert probs.count_nonzero(dim=-1).tolist() == [1_000, 4]


@pytest.mark.parametrize(
    "asked",
    [
        SamplingSettings(0.7),
        SamplingSettings(0.7, top_k=20),
        SamplingSettings(0.7, top_k=20, top_p=0.8, min_p=0.02),
        SamplingSettings(0.7, top_p=0.8),
    ],
    ids=SamplingSettings.describe,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_gets_the_same_bits_alone_and_in_a_block(
    asked: SamplingSettings, dtype: torch.dtype, two_threads: None
) -> None:
    logits = _logits(4, 40_000, 0.0, num_rows=5).to(dtype)
    logits[1] = logits[1].round()  # ties that leave the path over the largest logits
    logits[2] /= 30  # nearly flat: top-p reaches beyond the candidates
    block = token_probs(logits, asked)
    for row in range(5):
        assert torch.equal(token_probs(logits[row : row + 1], asked)[0], block[row])


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_further_warpers_come_after_the_filters() -> None:
    logits = _logits(5, 2_000, 0.0)
    asked = SamplingSettings(0.9, top_k=30, top_p=0.9)
    warper = TypicalLogitsWarper(0.5)
    expected = warper(NO_IDS, _transformers_law(logits, asked).log()).softmax(dim=-1)
    probs = token_probs(logits, asked, warpers=[warper])
    assert torch.allclose(probs, expected, atol=1e-6)
    assert not torch.allclose(probs, token_probs(logits, asked), atol=1e-3)


def test_logits_are_read_and_not_written() -> None:
    logits = torch.tensor([[1.0, 2.0, NAN], [1.0, 2.0, 3.0]])
    before = logits.clone()
    token_probs(logits, SamplingSettings(1.0, top_k=2, top_p=0.5), degenerate="uniform_reject")
    assert torch.equal(logits.nan_to_num(9.0), before.nan_to_num(9.0))


BROKEN_ROWS = [
    ([1.0, NAN, 0.0, -INF], "1 NaN, 0 .inf, 1 -inf"),
    ([1.0, INF, 0.0, 2.0], "0 NaN, 1 .inf, 0 -inf"),
    ([-INF] * 4, "0 NaN, 0 .inf, 4 -inf"),
]


@pytest.mark.parametrize(("broken", "seen"), BROKEN_ROWS)
def test_a_broken_target_row_is_an_error_that_says_where_and_what(broken: list[float], seen: str) -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -INF], broken])
    with pytest.raises(NumericalError, match=rf"row 1 .of 2. hold {seen} among 4"):
        token_probs(logits, SamplingSettings(1.0))


@pytest.mark.parametrize("asked", [SamplingSettings(0.5), SamplingSettings(1.0, top_k=1, top_p=0.5, min_p=0.5)])
@pytest.mark.parametrize(("broken", "_seen"), BROKEN_ROWS)
def test_a_broken_draft_row_is_the_uniform_law_and_its_neighbours_are_untouched(
    broken: list[float], _seen: str, asked: SamplingSettings
) -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -INF], broken])
    probs = token_probs(logits, asked, degenerate="uniform_reject")
    assert torch.equal(probs[0], token_probs(logits[:1], asked)[0])
    assert probs[1].tolist() == [0.25] * 4


def test_greedy_settings_have_no_law() -> None:
    with pytest.raises(UsageError, match="temperature is 0"):
        token_probs(torch.zeros(1, 3), SamplingSettings())


@settings(deadline=None, derandomize=True, max_examples=60)
@given(seed=logits_seeds, vocab_size=vocab_sizes, num_rows=st.integers(1, 4))
def test_ties_go_to_the_lowest_id_on_every_path(seed: int, vocab_size: int, num_rows: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(-2, 2, (num_rows, vocab_size), generator=generator).bfloat16()
    expected = [row.index(max(row)) for row in logits.tolist()]
    assert greedy_tokens(logits).tolist() == expected
    assert argmax_tokens(logits).tolist() == expected
    assert lowest_argmax(logits).tolist() == expected


def test_greedy_refuses_rows_that_name_no_token_and_takes_an_infinite_one() -> None:
    assert greedy_tokens(torch.tensor([[0.0, INF, INF]])).tolist() == [1]
    for broken in ([0.0, NAN], [-INF, -INF]):
        with pytest.raises(NumericalError, match="row 1 "):
            greedy_tokens(torch.tensor([[0.0, 1.0], broken]))


def test_a_row_of_nan_never_gives_an_id_outside_of_the_vocabulary() -> None:
    assert 0 <= int(lowest_argmax(torch.full((1, 7), NAN))) < 7
