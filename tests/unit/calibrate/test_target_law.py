from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from selfspec_calibrate.target_law import NUM_KEPT, TargetLaw, shared_noise_match
from selfspec_runtime.law import token_probs
from selfspec_runtime.sampling import SamplingSettings

WEIGHTS = st.lists(st.floats(0, 1), min_size=5, max_size=5).filter(lambda weights: sum(weights) > 0.1)


def law(weights: list[float]) -> Tensor:
    probs = torch.tensor(weights, dtype=torch.float64)
    return (probs / probs.sum()).float()[None]


def naive_match(target: Tensor, draft: Tensor) -> float:
    """The formula term by term."""
    total = 0.0
    for t, d in zip(target[0].tolist(), draft[0].tolist(), strict=True):
        if t > 0 and d > 0:
            pairs = zip(target[0].tolist(), draft[0].tolist(), strict=True)
            total += 1 / sum(max(other_t / t, other_d / d) for other_t, other_d in pairs)
    return total


@given(target=WEIGHTS, draft=WEIGHTS)
def test_match_probability_equals_the_formula(target: list[float], draft: list[float]) -> None:
    first, second = law(target), law(draft)
    assert float(shared_noise_match(first, second)) == pytest.approx(naive_match(first, second), abs=1e-5)


@given(target=WEIGHTS, draft=WEIGHTS)
def test_match_probability_lies_between_its_bounds(target: list[float], draft: list[float]) -> None:
    first, second = law(target), law(draft)
    overlap = float(torch.minimum(first, second).sum())
    match = float(shared_noise_match(first, second))
    assert overlap / (2 - overlap) - 1e-5 <= match <= overlap + 1e-5


def test_match_probability_is_how_often_shared_noise_agrees() -> None:
    target, draft = law([0.5, 0.3, 0.2, 0.0, 0.1]), law([0.2, 0.5, 0.0, 0.1, 0.3])
    uniform = torch.rand(200_000, 5, generator=torch.Generator().manual_seed(0))
    noise = -(-uniform.log()).log()
    same = (target.log() + noise).argmax(dim=1) == (draft.log() + noise).argmax(dim=1)
    # Six standard errors of 200,000 draws are below 0.007.
    assert float(same.float().mean()) == pytest.approx(float(shared_noise_match(target, draft)), abs=0.007)


@given(weights=WEIGHTS)
def test_equal_laws_always_match(weights: list[float]) -> None:
    assert float(shared_noise_match(law(weights), law(weights))) == pytest.approx(1.0, abs=1e-5)


def test_greedy_acceptance_is_the_draft_saying_what_the_trace_says() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [2.0, 2.0, 1.0], [0.0, 1.0, 5.0]])
    accept = TargetLaw.greedy(torch.tensor([1, 0, 1])).acceptance(logits, SamplingSettings())
    assert accept.tolist() == [1.0, 1.0, 0.0]


@pytest.mark.parametrize("mode", ["rejection", "match"])
def test_sampled_acceptance_of_the_target_itself_is_one(mode: str) -> None:
    sampling = SamplingSettings(temperature=0.7, top_k=20, mode=mode)  # type: ignore[arg-type]
    logits = torch.randn(4, 1000, generator=torch.Generator().manual_seed(1)) * 3
    accept = TargetLaw.sampled(logits, sampling).acceptance(logits, sampling)
    torch.testing.assert_close(accept, torch.ones(4), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("mode", "accepted"), [("rejection", 0.25), ("match", 0.25 / 1.75)])
def test_mass_that_is_not_kept_counts_as_never_accepted(mode: str, accepted: float) -> None:
    sampling = SamplingSettings(temperature=1.0, mode=mode)  # type: ignore[arg-type]
    logits = torch.zeros(1, 4 * NUM_KEPT)
    kept = TargetLaw.sampled(logits, sampling)
    assert kept.ids.shape == kept.probs.shape == (1, NUM_KEPT)
    assert float(kept.acceptance(logits, sampling)) == pytest.approx(accepted, abs=1e-4)


def test_a_broken_draft_row_is_not_accepted_and_stops_nothing() -> None:
    sampling = SamplingSettings(temperature=0.5)
    logits = torch.randn(2, 500, generator=torch.Generator().manual_seed(2)) * 5
    draft = logits.clone()
    draft[1] = torch.nan
    accept = TargetLaw.sampled(logits, sampling).acceptance(draft, sampling)
    overlap = torch.minimum(token_probs(logits, sampling)[1], torch.tensor(1 / 500)).sum()
    assert float(accept[0]) == pytest.approx(1.0, abs=1e-4)
    assert float(accept[1]) == pytest.approx(float(overlap), abs=1e-4)
