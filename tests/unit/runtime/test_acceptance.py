"""Acceptance is lossless: exactly, row by row, and as a joint law of decoded texts; its edges are defined."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.acceptance_suite import (
    FALSE_ALARM,
    FIRST_POSITION,
    START,
    MatchScheme,
    Scheme,
    decode,
    emitted_law,
    joint_p_value,
    markov_model,
)
from torch import Tensor

from selfspec_runtime.acceptance import (
    Verdict,
    accept_probs,
    greedy_accept,
    gumbel_token,
    match_accept,
    plain_token,
    rejection_accept,
    residual_probs,
    sample_token,
    shared_token,
)
from selfspec_runtime.errors import NumericalError
from selfspec_runtime.law import token_probs
from selfspec_runtime.noise import Stream, gumbel, uniform_scalar
from selfspec_runtime.sampling import SamplingSettings

NAN, INF = float("nan"), float("inf")
GRID = [
    SamplingSettings(1.0),
    SamplingSettings(0.5, top_k=4),
    SamplingSettings(1.5, top_p=0.8),
    SamplingSettings(0.8, top_k=5, top_p=0.9, min_p=0.1),
]
derandomised = settings(deadline=None, derandomize=True, max_examples=150)


@st.composite
def law_pairs(draw: st.DrawFn, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Two laws over 1 to 8 tokens, with zeros, equal entries and tiny ones among them."""
    size = draw(st.integers(1, 8))
    weights = st.one_of(st.integers(0, 3).map(float), st.floats(1e-12, 1.0))
    rows = st.lists(weights, min_size=size, max_size=size).filter(lambda row: sum(row) > 0)
    pair = [torch.tensor(draw(rows), dtype=torch.float64) for _ in range(2)]
    return (pair[0] / pair[0].sum()).to(dtype), (pair[1] / pair[1].sum()).to(dtype)


def _normalised(row: Tensor) -> Tensor:
    return row.double() / row.double().sum()


@derandomised
@given(pair=st.one_of(law_pairs(), law_pairs(torch.float32)))
def test_accepted_and_corrected_tokens_together_follow_the_target(pair: tuple[Tensor, Tensor]) -> None:
    draft, target = pair
    law = emitted_law(accept_probs, residual_probs, draft, target)
    assert torch.allclose(law, _normalised(target), rtol=0, atol=1e-12)


@derandomised
@given(pair=law_pairs(), data=st.data())
def test_a_draft_without_chance_is_lossless_too(pair: tuple[Tensor, Tensor], data: st.DataObject) -> None:
    target = pair[1]
    token = data.draw(st.integers(0, target.shape[0] - 1))
    law = emitted_law(accept_probs, residual_probs, None, target, draft_token_id=token)
    assert torch.allclose(law, target, rtol=0, atol=1e-12)
    one_hot = torch.zeros_like(target).index_fill_(0, torch.tensor([token]), 1.0)
    same = emitted_law(accept_probs, residual_probs, one_hot, target)
    assert torch.allclose(law, same, rtol=0, atol=1e-12)


@pytest.mark.parametrize("vocab_size", [1, 8_193, 151_936])
def test_the_identity_holds_on_large_vocabularies_and_on_one_token(vocab_size: int) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(2, vocab_size, generator=generator) * 4
    draft, target = token_probs(logits, SamplingSettings(1.0, top_k=12))
    law = emitted_law(accept_probs, residual_probs, draft, target)
    assert torch.allclose(law, _normalised(target), rtol=0, atol=1e-12)


@derandomised
@given(pair=law_pairs(), u=st.floats(0.0, 1.0))
def test_a_residual_is_a_law_and_never_the_rejected_token(pair: tuple[Tensor, Tensor], u: float) -> None:
    draft, target = pair
    for token in draft.nonzero()[:, 0].tolist():
        residual = residual_probs(draft, token, target)
        assert float(residual.sum()) == pytest.approx(1.0, abs=1e-12)
        assert float(residual.min()) >= 0
        if float(accept_probs(torch.tensor([token]), draft[None], target.repeat(2, 1))[0]) < 1 - 1e-9:
            assert sample_token(residual, u) != token


@pytest.mark.parametrize("asked", GRID, ids=SamplingSettings.describe)
@pytest.mark.parametrize("num_draft_tokens", [1, 2, 3])
def test_decoded_texts_follow_the_joint_law_of_the_target(asked: SamplingSettings, num_draft_tokens: int) -> None:
    scheme = Scheme(markov_model(), asked)
    assert joint_p_value(scheme, num_draft_tokens=num_draft_tokens) > FALSE_ALARM


@pytest.mark.parametrize("asked", GRID[1:3], ids=SamplingSettings.describe)
def test_texts_decoded_in_match_mode_follow_the_joint_law_of_the_target(asked: SamplingSettings) -> None:
    scheme = MatchScheme(markov_model(), asked)
    assert joint_p_value(scheme, num_draft_tokens=2, num_texts=1_500) > FALSE_ALARM


def test_texts_decoded_without_drafts_follow_the_joint_law_of_the_target() -> None:
    assert joint_p_value(Scheme(markov_model(), GRID[0]), num_draft_tokens=0) > FALSE_ALARM


@pytest.mark.parametrize("num_draft_tokens", [1, 3])
def test_match_mode_gives_the_text_of_plain_decoding_with_the_same_seed(num_draft_tokens: int) -> None:
    scheme = MatchScheme(markov_model(spread=2.0), GRID[0])
    plain = [decode(scheme, num_draft_tokens=0, seed=seed, num_tokens=20) for seed in range(20)]
    drafted = [decode(scheme, num_draft_tokens=num_draft_tokens, seed=seed, num_tokens=20) for seed in range(20)]
    assert drafted == plain
    assert len(set(plain)) == 20


def test_decoding_without_drafts_is_plain_decoding_in_rejection_mode() -> None:
    scheme = Scheme(markov_model(), GRID[0])
    (token,) = decode(scheme, num_draft_tokens=0, seed=5, num_tokens=1)
    assert token == plain_token(scheme.target_probs[START], seed=5, position=FIRST_POSITION)
    assert token == sample_token(scheme.target_probs[START], uniform_scalar(5, FIRST_POSITION, Stream.RESIDUAL))


@pytest.mark.parametrize(
    ("drafted", "chosen", "verdict"),
    [
        ([], [7], Verdict(0, 7)),
        ([3, 4], [3, 4, 5], Verdict(2, 5)),
        ([3, 4], [3, 9, 5], Verdict(1, 9)),
        ([3, 4], [9, 4, 5], Verdict(0, 9)),
        ([3, 0, 3], [3, 1, 3, 3], Verdict(1, 1)),
        ([-1, 4], [0, 4, 5], Verdict(0, 0)),
        ([3, -1], [3, 4, 5], Verdict(1, 4)),
    ],
)
def test_greedy_and_match_keep_the_common_prefix(drafted: list[int], chosen: list[int], verdict: Verdict) -> None:
    ids = torch.tensor(drafted, dtype=torch.long), torch.tensor(chosen)
    assert greedy_accept(*ids) == verdict
    assert match_accept(*ids) == verdict


def test_equal_laws_accept_everything() -> None:
    target = token_probs(torch.randn(5, 50, generator=torch.Generator().manual_seed(1)), GRID[0])
    ids = target[:4].argmin(dim=-1)
    assert accept_probs(ids, target[:4], target).tolist() == [1.0] * 4
    for seed in range(50):
        assert rejection_accept(ids, target[:4], target, seed=seed, first_position=0).num_accepted == 4


def test_disjoint_laws_accept_nothing_and_correct_by_the_target() -> None:
    draft = torch.tensor([[0.5, 0.5, 0.0, 0.0]])
    target = torch.tensor([[0.0, 0.0, 0.25, 0.75]] * 2)
    assert accept_probs(torch.tensor([1]), draft, target).tolist() == [0.0]
    assert residual_probs(draft[0], 1, target[0]).tolist() == [0.0, 0.0, 0.25, 0.75]
    for seed in range(50):
        verdict = rejection_accept(torch.tensor([1]), draft, target, seed=seed, first_position=0)
        assert verdict.num_accepted == 0
        assert verdict.token_id in (2, 3)


def test_a_residual_of_one_token_leaves_no_choice() -> None:
    draft, target = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.25, 0.5, 0.25])
    assert residual_probs(draft, 0, target).tolist() == [0.0, 0.0, 1.0]


def test_one_token_vocabularies_and_one_hot_laws_are_accepted() -> None:
    only = torch.ones(2, 1)
    assert rejection_accept(torch.tensor([0]), only[:1], only, seed=1, first_position=0) == Verdict(1, 0)
    assert rejection_accept(torch.tensor([0]), None, only, seed=1, first_position=0) == Verdict(1, 0)
    one_hot = torch.tensor([[0.0, 1.0, 0.0]] * 2)
    assert rejection_accept(torch.tensor([1]), one_hot[:1], one_hot, seed=1, first_position=0) == Verdict(1, 1)
    assert rejection_accept(torch.tensor([2]), None, one_hot, seed=1, first_position=0) == Verdict(0, 1)
    # No mass is left beside the drafted token: only rounding could lead here, and the target's law is given.
    assert residual_probs(None, 1, one_hot[0]).tolist() == [0.0, 1.0, 0.0]
    assert residual_probs(one_hot[0], 1, one_hot[0]).tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("outside", [-1, 3, 10**6])
@pytest.mark.parametrize("with_law", [True, False])
def test_ids_outside_of_the_vocabulary_are_rejected_and_the_target_speaks(outside: int, with_law: bool) -> None:
    target = torch.tensor([[0.2, 0.3, 0.5]] * 3)
    draft = torch.tensor([[0.0, 0.0, 1.0], [0.2, 0.3, 0.5]]) if with_law else None
    ids = torch.tensor([outside, 1])
    assert accept_probs(ids, draft, target).tolist() == [0.0, 1.0 if with_law else pytest.approx(0.3)]
    row = None if draft is None else draft[0]
    assert torch.allclose(residual_probs(row, outside, target[0]), target[0].double(), atol=1e-7)
    for seed in range(20):
        verdict = rejection_accept(ids, draft, target, seed=seed, first_position=9)
        assert verdict == Verdict(0, plain_token(target[0], seed=seed, position=9))


@pytest.mark.parametrize("broken", [[NAN, 0.5, 0.5], [INF, 0.0, 0.0], [0.0, 0.0, 0.0], [NAN] * 3])
def test_a_draft_law_that_is_none_is_a_rejection_and_the_target_speaks(broken: list[float]) -> None:
    draft, target = torch.tensor([broken]), torch.tensor([[0.2, 0.3, 0.5]] * 2)
    for token in range(3):
        assert accept_probs(torch.tensor([token]), draft, target).tolist() == [0.0]
        assert torch.allclose(residual_probs(draft[0], token, target[0]), target[0].double(), atol=1e-7)


@pytest.mark.parametrize("broken", [[NAN, 0.5, 0.5], [INF, 0.0, 0.0], [0.0, 0.0, 0.0]])
def test_a_target_law_that_is_none_is_an_error_and_never_a_token(broken: list[float]) -> None:
    row = torch.tensor(broken)
    with pytest.raises(NumericalError, match="law over 3 tokens"):
        rejection_accept(torch.tensor([1]), None, torch.stack([row, row]), seed=1, first_position=0)
    with pytest.raises(NumericalError, match="law over 3 tokens"):
        sample_token(row, 0.5)
    with pytest.raises(NumericalError, match="law over 3 tokens"):
        gumbel_token(row, torch.zeros(3))
    with pytest.raises(NumericalError, match="law over 3 tokens"):
        shared_token(row, seed=1, position=0)


@pytest.mark.parametrize("vocab_size", [3, 100, 8_193, 151_936])
@pytest.mark.parametrize("u", [0.0, 2.0**-53, 0.5, 1 - 2.0**-53, 1.0])
def test_no_uniform_number_leads_to_a_token_of_probability_zero(vocab_size: int, u: float) -> None:
    probs = torch.zeros(vocab_size)
    inside = torch.arange(1, vocab_size - 1, max(1, vocab_size // 50))
    probs[inside] = torch.rand(inside.shape[0], generator=torch.Generator().manual_seed(3)) + 1e-6
    assert float(probs[sample_token(probs, u)]) > 0


def test_the_inverse_of_the_cumulative_law_is_right_at_its_steps() -> None:
    probs = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    drawn = [sample_token(probs, u) for u in (0.0, 0.24, 0.25, 0.74, 0.75, 1.0)]
    assert drawn == [1, 1, 3, 3, 4, 4]
    assert sample_token(probs * 3, 0.74) == 3


@derandomised
@given(pair=law_pairs(torch.float32), seed=st.integers(0, 2**32), position=st.integers(0, 10**6))
def test_shared_tokens_are_those_of_the_whole_noise_and_never_impossible(
    pair: tuple[Tensor, Tensor], seed: int, position: int
) -> None:
    for probs in (pair[0], torch.nn.functional.pad(pair[0], (100, 100))):
        noise = gumbel(seed, position, Stream.SHARED, probs.shape[0])
        token = gumbel_token(probs, noise)
        assert float(probs[token]) > 0
        assert shared_token(probs, seed=seed, position=position) == token


def test_a_verdict_depends_on_seed_and_position_and_not_on_what_was_drawn_before() -> None:
    model = markov_model()
    target, draft = (token_probs(logits, GRID[0]) for logits in (model.target_logits, model.draft_logits))
    ids = draft[:3].argmax(dim=-1)

    def verdicts(where: range) -> list[Verdict]:
        return [rejection_accept(ids, draft[:3], target[:4], seed=2, first_position=p) for p in where]

    assert verdicts(range(40)) == verdicts(range(39, -1, -1))[::-1]
    assert len(set(verdicts(range(40)))) > 5
