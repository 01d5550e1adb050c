"""What a generation gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.request import Request
    from selfspec_runtime.decoder import RunRecord
    from selfspec_runtime.stats import AcceptanceStats, PhaseSeconds
    from selfspec_runtime.step import SpeculativeStep
    from selfspec_runtime.stopping import FinishReason


@dataclass(frozen=True, kw_only=True)
class Result:
    """A generation.

    Attributes:
        text: The generated text, without the prompt.
        token_ids: Its ids, an ending token included.
        finish_reason: ``eos``, ``stop``, ``criterion`` or ``length``; None where it was interrupted.
        stats: Counts of drafts and accepted tokens, over all rounds after the first token.
        seconds: Where the time went.
        prompt_token_ids: The prompt as the model got it.
        notices: What was overridden or done otherwise than asked, one sentence each.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    stats: AcceptanceStats
    seconds: PhaseSeconds
    prompt_token_ids: tuple[int, ...]
    notices: tuple[str, ...] = ()

    @classmethod
    def of(cls, request: Request, steps: Sequence[SpeculativeStep], record: RunRecord) -> Self:
        """Puts the steps of a generation together."""
        return cls(
            text="".join(step.text for step in steps),
            token_ids=tuple(token for step in steps for token in step.token_ids),
            finish_reason=steps[-1].finish_reason if steps else None,
            stats=record.stats,
            seconds=record.seconds,
            prompt_token_ids=request.prompt_ids,
            notices=(*request.notices, *record.notices),
        )

    @property
    def tokens_per_s(self) -> float | None:
        """Decoding speed, the prompt's pass and the first token apart; None for a single token."""
        decode_s, tokens = self.seconds.decode, len(self.token_ids) - 1
        return tokens / decode_s if tokens > 0 and decode_s > 0 else None
