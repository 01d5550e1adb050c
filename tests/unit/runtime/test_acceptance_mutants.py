"""Rules that are wrong on purpose: the suite that passes the shipped rule rejects every one of them.

Each is a fault that was found in a released runtime, or one letter away from one. A suite that lets one pass would
prove nothing about the rule that it passes.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.support.acceptance_suite import FALSE_ALARM, MarkovModel, Scheme, joint_p_value, markov_model
from torch import Tensor

from selfspec_runtime.acceptance import Verdict, accept_probs, plain_token, residual_probs, sample_token
from selfspec_runtime.law import token_probs
from selfspec_runtime.noise import Stream, uniform_scalar
from selfspec_runtime.sampling import SamplingSettings

SETTINGS = SamplingSettings(0.7, top_k=5)


class Composed(Scheme):
    """The shipped rule put together from its parts, each of which a mutant replaces."""

    correction_stream = Stream.RESIDUAL

    def decide(self, states: list[int], drafted: list[int], *, seed: int, position: int) -> Verdict:
        ids = torch.tensor(drafted, dtype=torch.long)
        reported = None if self.reported_probs is None else self.reported_probs[states[:-1]]
        wanted = accept_probs(ids, reported, self.target_probs[states]).tolist()
        for i, prob in enumerate(wanted):
            if uniform_scalar(seed, position + i, Stream.ACCEPT) >= prob:
                law = self.correction(states, drafted, i)
                return Verdict(i, self.draw(law, seed=seed, position=position + i))
        law = self.bonus(states, drafted)
        return Verdict(len(drafted), plain_token(law, seed=seed, position=position + len(drafted)))

    def correction(self, states: list[int], drafted: list[int], row: int) -> Tensor:
        reported = None if self.reported_probs is None else self.reported_probs[states[row]]
        return residual_probs(reported, drafted[row], self.target_probs[states[row]])

    def bonus(self, states: list[int], drafted: list[int]) -> Tensor:
        return self.target_probs[states[-1]]

    def draw(self, law: Tensor, *, seed: int, position: int) -> int:
        return sample_token(law, uniform_scalar(seed, position, self.correction_stream))


class NoResidual(Composed):
    def correction(self, states: list[int], drafted: list[int], row: int) -> Tensor:
        return self.target_probs[states[row]]


class AcceptanceNumberReused(Composed):
    correction_stream = Stream.ACCEPT


class DraftSharesResidualNoise(Composed):
    def propose(self, state: int, *, seed: int, position: int, round_start: int) -> int | None:
        return plain_token(self.draft_probs[state], seed=seed, position=position)


class DraftSharesAcceptanceNoise(Composed):
    def propose(self, state: int, *, seed: int, position: int, round_start: int) -> int | None:
        return sample_token(self.draft_probs[state], uniform_scalar(seed, position, Stream.ACCEPT))


class TargetWithoutTemperature(Composed):
    def __init__(self, model: MarkovModel, settings: SamplingSettings) -> None:
        super().__init__(model, settings)
        self.target_probs = token_probs(model.target_logits, dataclasses.replace(settings, temperature=1.0))


class DraftReportsAnotherTemperature(Composed):
    def __init__(self, model: MarkovModel, settings: SamplingSettings) -> None:
        super().__init__(model, settings)
        self.reported_probs = token_probs(model.draft_logits, dataclasses.replace(settings, temperature=1.4))


class DraftReportsNoLaw(Composed):
    """Lossless, if wasteful: whatever token is proposed, accepted and corrected ones follow the target."""

    def __init__(self, model: MarkovModel, settings: SamplingSettings) -> None:
        super().__init__(model, settings)
        self.reported_probs = None


class BonusFromResidual(Composed):
    def bonus(self, states: list[int], drafted: list[int]) -> Tensor:
        return residual_probs(self.draft_probs[states[-1]], drafted[-1], self.target_probs[states[-1]])


class BonusWithoutFilters(Composed):
    def bonus(self, states: list[int], drafted: list[int]) -> Tensor:
        return self.model.target_logits[states[-1]].softmax(dim=-1)


class OffByOneRow(Composed):
    def correction(self, states: list[int], drafted: list[int], row: int) -> Tensor:
        return super().correction([*states[1:], states[-1]], drafted, row)


class GreedyAboveTemperatureZero(Composed):
    def decide(self, states: list[int], drafted: list[int], *, seed: int, position: int) -> Verdict:
        chosen = self.target_probs[states].argmax(dim=-1).tolist()
        for i, token in enumerate(drafted):
            if token != chosen[i]:
                return Verdict(i, chosen[i])
        return Verdict(len(drafted), chosen[-1])


class ConfidenceStopDropsWhatItLookedAt(Composed):
    def propose(self, state: int, *, seed: int, position: int, round_start: int) -> int | None:
        token = super().propose(state, seed=seed, position=position, round_start=round_start)
        return token if token is not None and float(self.draft_probs[state, token]) > 0.3 else None


class LearnerWithFreshNoise(Composed):
    """Lossless: drafts the next round well if the token that was thrown away had a low id, and else badly."""

    def __init__(self, model: MarkovModel, settings: SamplingSettings) -> None:
        super().__init__(model, settings)
        self.good_probs, self.bad_probs = self.target_probs, token_probs(-model.target_logits, settings)
        self.observe([])

    def observe(self, dropped: list[int]) -> None:
        # The first dropped token was rejected; the second was never judged, and its position is drafted again.
        learned = len(dropped) > 1 and dropped[1] < 3
        self.draft_probs = self.reported_probs = self.good_probs if learned else self.bad_probs


class LearnerWithStaleNoise(LearnerWithFreshNoise):
    def propose(self, state: int, *, seed: int, position: int, round_start: int) -> int | None:
        return super().propose(state, seed=seed, position=position, round_start=0)


MUTANTS = [
    NoResidual,
    AcceptanceNumberReused,
    DraftSharesResidualNoise,
    DraftSharesAcceptanceNoise,
    TargetWithoutTemperature,
    DraftReportsAnotherTemperature,
    BonusFromResidual,
    BonusWithoutFilters,
    OffByOneRow,
    GreedyAboveTemperatureZero,
    ConfidenceStopDropsWhatItLookedAt,
    LearnerWithStaleNoise,
]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_rule_is_rejected(mutant: type[Composed]) -> None:
    scheme = mutant(markov_model(), SETTINGS)
    assert joint_p_value(scheme, num_draft_tokens=2) < FALSE_ALARM


@pytest.mark.parametrize("right", [Composed, DraftReportsNoLaw, LearnerWithFreshNoise])
def test_a_right_rule_of_the_same_make_passes(right: type[Composed]) -> None:
    scheme = right(markov_model(), SETTINGS)
    assert joint_p_value(scheme, num_draft_tokens=2) > FALSE_ALARM


@pytest.mark.parametrize("num_draft_tokens", [1, 2, 3])
def test_the_rule_that_they_are_made_from_is_the_shipped_one(num_draft_tokens: int) -> None:
    shipped, composed = (kind(markov_model(), SETTINGS) for kind in (Scheme, Composed))
    states = [0, *shipped.draft_probs.argmax(dim=-1).tolist()[:num_draft_tokens]]
    for seed in range(200):
        verdict = shipped.decide(states, states[1:], seed=seed, position=4)
        assert composed.decide(states, states[1:], seed=seed, position=4) == verdict
