"""A scripted acceptance: as many tokens stand as were asked for, and every pass is still run."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tiny_models import prompt_ids, tiny_target

from selfspec_runtime.drafts.draft import Draft
from selfspec_runtime.engine import Engine
from selfspec_runtime.errors import NumericalError, UsageError
from selfspec_runtime.generation import Generation, GenerationSettings
from selfspec_runtime.plan import DraftPlan
from selfspec_runtime.processors import Processors
from selfspec_runtime.sampling import SamplingSettings
from selfspec_runtime.sequence import Sequence
from selfspec_runtime.synthetic import SyntheticRule

PLAN = DraftPlan.model_validate(
    {"source": {"kind": "early_exit", "exit_layer": 1}, "controller": {"kind": "fixed", "num_draft_tokens": 4}}
)


def generated(acceptance: float, *, seed: int = 0, tokens: int = 61, **settings: object) -> Generation:
    given = {"synthetic_acceptance": acceptance, "sampling": SamplingSettings(seed=seed), **settings}
    return Engine(tiny_target("llama"), plan=PLAN).generate(
        prompt_ids(), GenerationSettings(max_new_tokens=tokens, **given)
    )


def decided(acceptance: float, drafted: list[int], logits: torch.Tensor, *, seed: int = 0) -> tuple[int, int]:
    draft = Draft(origin="early_exit")
    for token_id in drafted:
        draft.append(token_id, None)
    rule = SyntheticRule(SamplingSettings(seed=seed), Processors(), acceptance=acceptance)
    verdict = rule.decide(draft, logits, Sequence([1, 2, 3], device=torch.device("cpu")))
    return verdict.num_accepted, verdict.token_id


def test_at_one_everything_stands_and_at_zero_nothing() -> None:
    everything, nothing = generated(1.0).stats, generated(0.0).stats
    assert everything.num_accepted_tokens == everything.num_draft_tokens > 0
    assert everything.num_rounds == 12
    assert nothing.num_accepted_tokens == 0
    assert nothing.num_rounds == 60


def test_the_share_that_stands_is_the_one_asked_for() -> None:
    stats = generated(0.8, tokens=400).stats
    reached = [*stats.num_accepted_tokens_per_pos, 0]
    assert reached[0] / stats.num_drafts == pytest.approx(0.8, abs=0.08)
    assert reached[1] / reached[0] == pytest.approx(0.8, abs=0.08)


def test_a_seed_and_a_position_decide() -> None:
    same = [generated(0.5, seed=3).stats.num_accepted_tokens_per_pos for _ in range(2)]
    assert same[0] == same[1]
    assert len({tuple(generated(0.5, seed=seed).stats.num_accepted_tokens_per_pos) for seed in range(6)}) > 1


def test_an_ending_token_does_not_end_it() -> None:
    every = tuple(range(tiny_target("llama").model.config.vocab_size))
    result = generated(0.9, eos_token_ids=every)
    assert result.finish_reason == "length"
    assert len(result.token_ids) == 61


@given(accepted=st.integers(0, 5), seed=st.integers(0, 2**32))
def test_after_what_stands_comes_the_targets_own_likeliest(accepted: int, seed: int) -> None:
    logits = torch.eye(6, 16)[:, :]  # row i says token i
    probability = 1.0 if accepted == 5 else accepted / 5
    number, token_id = decided(probability, [9, 9, 9, 9, 9], logits, seed=seed)
    assert token_id == number
    assert number == 5 or probability < 1


def test_logits_that_are_no_numbers_are_still_an_error() -> None:
    with pytest.raises(NumericalError):
        decided(1.0, [1], torch.full((2, 16), float("nan")))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"synthetic_acceptance": 1.5}, "is 1.5, and it is a probability"),
        ({"synthetic_acceptance": -0.1}, "a number from 0 to 1"),
        ({"synthetic_acceptance": 0.5, "sampling": SamplingSettings(temperature=1.0)}, "greedy decoding only"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        GenerationSettings(**settings)
