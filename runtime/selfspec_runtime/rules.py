"""Acceptance rules: how a law becomes a token, for draft and target alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from selfspec_runtime.acceptance import (
    Verdict,
    greedy_accept,
    match_accept,
    rejection_accept,
    sample_token,
    shared_token,
)
from selfspec_runtime.drafts.draft import Draft
from selfspec_runtime.kernels.acceptance import KernelAcceptance
from selfspec_runtime.law import greedy_tokens, token_probs
from selfspec_runtime.noise import Stream, gumbel, uniform_scalar

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec_runtime.drafts.draft import TokenLaw
    from selfspec_runtime.processors import Processors
    from selfspec_runtime.sampling import SamplingSettings
    from selfspec_runtime.sequence import Sequence


@dataclass(frozen=True)
class Choice:
    """One drafted token.

    Attributes:
        token_id: The token.
        token: The same, ``[1]`` int64 on the device.
        probs: The law it was drawn from, ``[vocab]`` float32, or as kernels read it; None for a choice without
            randomness.
        confidence: Probability of the likeliest token under the draft's unprocessed law, or 1.0 if not asked.
    """

    token_id: int
    token: Tensor
    probs: TokenLaw | None
    confidence: float


class AcceptanceRule(ABC):
    """Draws draft tokens and decides which of them the target would have said.

    Args:
        settings: Temperature, filters, seed.
        processors: History-dependent logits processors; each row sees its own drafted prefix.

    Attributes:
        is_scripted: Whether it decides otherwise than the settings say, so that nothing but itself may decide.
    """

    is_scripted: ClassVar[bool] = False

    def __init__(self, settings: SamplingSettings, processors: Processors) -> None:
        self.settings = settings
        self.processors = processors
        self._kernels = KernelAcceptance(settings, processors)

    def choose(
        self, logits: Tensor, sequence: Sequence, drafted: list[int], *, wants_confidence: bool = False
    ) -> Choice:
        """Draws the next draft token.

        Args:
            logits: ``[1, vocab]`` of the draft.
            sequence: The committed tokens.
            drafted: Tokens drafted before in this round.
            wants_confidence: Whether to compute the confidence.
        """
        confidence = float(logits.float().softmax(dim=-1).max()) if wants_confidence else 1.0
        processed = self._processed(logits, sequence, drafted, last_only=True)
        token_id, probs = self._drawn(processed, len(sequence) + len(drafted), round_start=len(sequence))
        token = torch.tensor([token_id], dtype=torch.long, device=logits.device)
        return Choice(token_id, token, probs, confidence)

    def decide(self, draft: Draft, logits: Tensor, sequence: Sequence) -> Verdict:
        """Decides how many draft tokens stand, and draws the token that follows them.

        The chain is decided as if it stood alone. Where the target's token then is one of a side branch, the branch
        stands too, and the token after it is drawn as plain decoding draws it: a branch says which law is at hand
        already, and never has a say in which token it is.

        Args:
            draft: A chain of ``g`` tokens, perhaps with side branches.
            logits: ``[1 + g + branches, vocab]`` of the target.
            sequence: The committed tokens.
        """
        processed = self._processed(logits[: len(draft) + 1], sequence, draft.token_ids, last_only=False)
        verdict = self._decided(draft, processed, len(sequence))
        branch = draft.branch_to(verdict.num_accepted, verdict.token_id)
        if branch is None:
            return verdict
        path = [*draft.token_ids[: verdict.num_accepted], verdict.token_id]
        after = self._processed(logits[draft.row_of(branch)][None], sequence, path, last_only=True)
        token_id = self._decided(Draft(), after, len(sequence) + len(path)).token_id
        return Verdict(len(path), token_id, branch)

    def scores(self, logits: Tensor, sequence: Sequence, drafted: list[int]) -> Tensor:
        """Ranks the tokens that the target may say where a draft token is chosen, for side branches.

        Args:
            logits: ``[1, vocab]`` of the draft.
            sequence: The committed tokens.
            drafted: Tokens drafted before in this round.

        Returns:
            ``[vocab]`` float32; the larger, the likelier, and -inf for what cannot be said.
        """
        processed = self._processed(logits, sequence, drafted, last_only=True)
        return self._scores(processed, len(sequence) + len(drafted))

    def _drawn(self, logits: Tensor, position: int, *, round_start: int) -> tuple[int, TokenLaw | None]:
        draw = self._kernels.draw if self._kernels.serves(logits) else self._draw
        return draw(logits, position, round_start=round_start)

    def _decided(self, draft: Draft, logits: Tensor, position: int) -> Verdict:
        decide = self._kernels.decide if self._kernels.serves(logits, draft) else self._decide
        return decide(draft, logits, position)

    @abstractmethod
    def _draw(self, logits: Tensor, position: int, *, round_start: int) -> tuple[int, Tensor | None]: ...

    @abstractmethod
    def _decide(self, draft: Draft, logits: Tensor, position: int) -> Verdict: ...

    def _scores(self, logits: Tensor, position: int) -> Tensor:
        """Scores of processed logits ``[1, vocab]``; these themselves unless something is drawn."""
        del position
        return logits[0].float()

    def _law(self, logits: Tensor, *, degenerate: Literal["raise", "uniform_reject"] = "raise") -> Tensor:
        """The one way from logits to a law, for draft and target alike."""
        return token_probs(logits, self.settings, degenerate=degenerate, warpers=self.processors.warpers)

    def _processed(self, logits: Tensor, sequence: Sequence, drafted: list[int], *, last_only: bool) -> Tensor:
        if self.processors.is_empty:
            return logits
        block = torch.tensor(drafted, dtype=torch.long, device=logits.device)
        if not last_only:
            return self.processors(logits, sequence.tensor()[None], block)
        prefix = torch.cat([sequence.tensor(), block])[None]
        return self.processors(logits, prefix, block[:0])


class GreedyRule(AcceptanceRule):
    """The likeliest token; a draft token stands if it is the target's likeliest."""

    def _draw(self, logits: Tensor, position: int, *, round_start: int) -> tuple[int, Tensor | None]:
        del position, round_start
        # A draft may choose anything, so a NaN in it only costs acceptance; argmax is defined for it.
        return int(logits[0].argmax()), None

    def _decide(self, draft: Draft, logits: Tensor, position: int) -> Verdict:
        del position
        return greedy_accept(_ids(draft, logits), greedy_tokens(logits))


class RejectionRule(AcceptanceRule):
    """Speculative sampling (Leviathan et al. 2211.17192, Chen et al. 2302.01318)."""

    def _draw(self, logits: Tensor, position: int, *, round_start: int) -> tuple[int, Tensor | None]:
        probs = self._law(logits, degenerate="uniform_reject")[0]
        # A position drafted again after a rejection gets fresh noise: the round is part of the counter.
        noise = uniform_scalar(self.settings.seed, position, Stream.DRAFT, salt=round_start)
        return sample_token(probs, noise), probs

    def _scores(self, logits: Tensor, position: int) -> Tensor:
        del position
        return self._law(logits, degenerate="uniform_reject")[0].log()

    def _decide(self, draft: Draft, logits: Tensor, position: int) -> Verdict:
        target_probs = self._law(logits)
        draft_probs = torch.stack([p for p in draft.probs if isinstance(p, torch.Tensor)]) if any_drawn(draft) else None
        return rejection_accept(
            _ids(draft, logits), draft_probs, target_probs, seed=self.settings.seed, first_position=position
        )


class MatchRule(AcceptanceRule):
    """Draft and target share a position's Gumbel noise, so that a seeded run equals seeded plain decoding."""

    def _draw(self, logits: Tensor, position: int, *, round_start: int) -> tuple[int, Tensor | None]:
        del round_start
        probs = self._law(logits, degenerate="uniform_reject")[0]
        return self._token(probs, position), None

    def _scores(self, logits: Tensor, position: int) -> Tensor:
        probs = self._law(logits, degenerate="uniform_reject")[0]
        noise = gumbel(self.settings.seed, position, Stream.SHARED, probs.shape[0], device=probs.device)
        return probs.log() + noise

    def _decide(self, draft: Draft, logits: Tensor, position: int) -> Verdict:
        target_probs = self._law(logits)
        drawn = [self._token(row, position + index) for index, row in enumerate(target_probs)]
        return match_accept(_ids(draft, logits), torch.tensor(drawn, dtype=torch.long, device=logits.device))

    def _token(self, probs: Tensor, position: int) -> int:
        return shared_token(probs, seed=self.settings.seed, position=position)


def make_rule(settings: SamplingSettings, processors: Processors) -> AcceptanceRule:
    """The rule that the settings ask for."""
    if settings.greedy:
        return GreedyRule(settings, processors)
    return (MatchRule if settings.mode == "match" else RejectionRule)(settings, processors)


def any_drawn(draft: Draft) -> bool:
    """Whether the draft's tokens were drawn from laws (all or none are)."""
    return any(probs is not None for probs in draft.probs)


def _ids(draft: Draft, logits: Tensor) -> Tensor:
    return torch.tensor(draft.token_ids, dtype=torch.long, device=logits.device)
