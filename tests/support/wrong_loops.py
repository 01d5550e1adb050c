"""Acceptance rules and sources that are wrong on purpose, to be put into the real loop, and right ones of their make.

Each is a fault that was found in a released runtime, or one letter away from one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from tests.support.fake_target import VOCAB_SIZE

from selfspec_runtime.acceptance import Verdict, greedy_accept, plain_token, residual_probs, sample_token
from selfspec_runtime.drafts.draft import Draft, ExactPrefix
from selfspec_runtime.drafts.source import DraftSource, RoundContext
from selfspec_runtime.law import greedy_tokens, token_probs
from selfspec_runtime.noise import Stream, uniform_scalar
from selfspec_runtime.rules import MatchRule, RejectionRule

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec_runtime.sequence import Sequence


class NextPositionsNoise(MatchRule):
    """Lossless in law, but not the text that plain decoding gives."""

    def _decide(self, draft: Draft, logits: Tensor, position: int) -> Verdict:
        return super()._decide(draft, logits, position + (len(draft) > 0))


class TargetWithoutTemperature(RejectionRule):
    def _decide(self, draft: Draft, logits: Tensor, position: int) -> Verdict:
        return super()._decide(draft, logits * self.settings.temperature, position)


class DraftSharesResidualNoise(RejectionRule):
    def _draw(self, logits: Tensor, position: int, *, round_start: int) -> tuple[int, Tensor | None]:
        probs = self._law(logits)[0]
        return plain_token(probs, seed=self.settings.seed, position=position), probs


class DraftSharesAcceptanceNoise(RejectionRule):
    def _draw(self, logits: Tensor, position: int, *, round_start: int) -> tuple[int, Tensor | None]:
        probs = self._law(logits)[0]
        return sample_token(probs, uniform_scalar(self.settings.seed, position, Stream.ACCEPT)), probs


class DraftReportsAnotherTemperature(RejectionRule):
    def _draw(self, logits: Tensor, position: int, *, round_start: int) -> tuple[int, Tensor | None]:
        token_id, _ = super()._draw(logits, position, round_start=round_start)
        return token_id, token_probs(logits, replace(self.settings, temperature=1.6))[0]


class RowsOffByOne(RejectionRule):
    def _decide(self, draft: Draft, logits: Tensor, position: int) -> Verdict:
        return super()._decide(draft, logits.roll(-1, dims=0), position)


class BonusFromTheRowBefore(RejectionRule):
    def _decide(self, draft: Draft, logits: Tensor, position: int) -> Verdict:
        rows = [*range(len(logits) - 1), max(len(logits) - 2, 0)]
        return super()._decide(draft, logits[rows], position)


class GreedyAboveTemperatureZero(RejectionRule):
    def _decide(self, draft: Draft, logits: Tensor, position: int) -> Verdict:
        return greedy_accept(torch.tensor(draft.token_ids, dtype=torch.long), greedy_tokens(logits))


class KeepsTheRejectedToken(RejectionRule):
    def _decide(self, draft: Draft, logits: Tensor, position: int) -> Verdict:
        verdict = super()._decide(draft, logits, position)
        return Verdict(min(verdict.num_accepted + 1, len(draft)), verdict.token_id)


class Corrected(RejectionRule):
    """Replaces the token after a rejection by another; lossless if ``_correction`` does what the rule does."""

    stream = Stream.RESIDUAL

    def _decide(self, draft: Draft, logits: Tensor, position: int) -> Verdict:
        verdict = super()._decide(draft, logits, position)
        row = verdict.num_accepted
        if row == len(draft):
            return verdict
        noise = uniform_scalar(self.settings.seed, position + row, self.stream)
        return Verdict(row, sample_token(self._correction(draft, self._law(logits)[row], row), noise))

    def _correction(self, draft: Draft, target_row: Tensor, row: int) -> Tensor:
        return residual_probs(draft.probs[row], draft.token_ids[row], target_row)


class NoResidual(Corrected):
    def _correction(self, draft: Draft, target_row: Tensor, row: int) -> Tensor:
        return target_row


class AcceptanceNumberReused(Corrected):
    stream = Stream.ACCEPT


class ResidualOfAnotherRow(Corrected):
    def _correction(self, draft: Draft, target_row: Tensor, row: int) -> Tensor:
        return residual_probs(draft.probs[row - 1], draft.token_ids[row], target_row)


class DraftReportsNoLaw(RejectionRule):
    """Lossless, if wasteful."""

    def _draw(self, logits: Tensor, position: int, *, round_start: int) -> tuple[int, Tensor | None]:
        return super()._draw(logits, position, round_start=round_start)[0], None


@dataclass
class Changed(DraftSource):
    """A source whose drafts are tampered with; as it is, they are not."""

    source: DraftSource | None

    def propose(self, context: RoundContext) -> Draft:
        assert self.source is not None
        draft = self.source.propose(context)
        self.change(draft)
        return draft

    def change(self, draft: Draft) -> None:
        """Tampers."""


class StopDropsWhatItLookedAt(Changed):
    """A confidence stop that judges the sampled token, and proposes it only if the draft finds it likely."""

    def change(self, draft: Draft) -> None:
        likely = [probs is None or float(probs[token]) > 0.5 for token, probs in self._pairs(draft)]
        kept = likely.index(False) if False in likely else len(likely)
        del draft.token_ids[kept:], draft.probs[kept:]
        draft.prefix = None

    def _pairs(self, draft: Draft) -> zip[tuple[int, Tensor | None]]:
        return zip(draft.token_ids, draft.probs, strict=True)


class StopForgetsEveryLastToken(Changed):
    """Lossless, if wasteful: what is dropped does not depend on the tokens."""

    def change(self, draft: Draft) -> None:
        draft.token_ids.pop()
        draft.probs.pop()
        draft.prefix = None


class StatesOfOtherTokens(Changed):
    """Hands the verification the states of the pass before: lossless only if these were never used."""

    def change(self, draft: Draft) -> None:
        assert draft.prefix is not None
        draft.prefix = ExactPrefix(draft.prefix.exit_layer, draft.prefix.hidden.roll(1, dims=1))


class LookupClaimsALaw(Changed):
    """Says of tokens that it looked up that it had drawn them."""

    def change(self, draft: Draft) -> None:
        draft.probs = [torch.full((VOCAB_SIZE,), 1 / VOCAB_SIZE) for _ in draft.token_ids]


class BranchReadsTheChainsRow(RejectionRule):
    """Goes on from a branch as if the chain's token stood there."""

    def decide(self, draft: Draft, logits: Tensor, sequence: Sequence) -> Verdict:
        for number, branch in enumerate(draft.branches):
            logits[draft.row_of(number)] = logits[branch.place + 1]
        return super().decide(draft, logits, sequence)


class BranchInsteadOfTheCorrection(RejectionRule):
    """Takes a branch whenever the chain was rejected beside one."""

    def _decide(self, draft: Draft, logits: Tensor, position: int) -> Verdict:
        verdict = super()._decide(draft, logits, position)
        beside = [branch.token_id for branch in draft.branches if branch.place == verdict.num_accepted]
        return Verdict(verdict.num_accepted, beside[0]) if beside else verdict


class GreedyBehindABranch(RejectionRule):
    """Takes the likeliest token after a branch."""

    def decide(self, draft: Draft, logits: Tensor, sequence: Sequence) -> Verdict:
        verdict = super().decide(draft, logits, sequence)
        if verdict.branch is None:
            return verdict
        return replace(verdict, token_id=int(logits[draft.row_of(verdict.branch)].argmax()))


WRONG_TREE_RULES = [BranchReadsTheChainsRow, BranchInsteadOfTheCorrection, GreedyBehindABranch]
WRONG_RULES = [
    TargetWithoutTemperature,
    DraftSharesResidualNoise,
    DraftSharesAcceptanceNoise,
    DraftReportsAnotherTemperature,
    RowsOffByOne,
    BonusFromTheRowBefore,
    GreedyAboveTemperatureZero,
    KeepsTheRejectedToken,
    NoResidual,
    AcceptanceNumberReused,
    ResidualOfAnotherRow,
]
RIGHT_RULES = [Corrected, DraftReportsNoLaw]
WRONG_SOURCES = [
    (StopDropsWhatItLookedAt, "layer_skip"),
    (StatesOfOtherTokens, "early_exit"),
    (LookupClaimsALaw, "ngram"),
]
RIGHT_SOURCES = [(Changed, "early_exit"), (StopForgetsEveryLastToken, "early_exit"), (Changed, "ngram")]
