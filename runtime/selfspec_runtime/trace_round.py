"""One round of a trace."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

FATES = ("first", "accepted", "corrected", "bonus", "plain")
"""What a committed token was, in the order of its codes: the prompt's own, an accepted draft token, the target's
in place of a rejected one, the target's after a draft that stood whole, or the target's where nothing was drafted."""


class TraceRound(BaseModel):
    """What one round drafted and committed.

    Attributes:
        start: Place of its first committed token among the generated ones.
        num_tokens: Committed tokens.
        drafted_ids: What the draft proposed, rejected tokens included.
        draft_probs: The draft's probability of each at temperature 1; None where no law stands behind it.
        num_accepted: Committed tokens that came from the draft.
        rejected_target_prob: The target's probability of the first rejected token, None where none was.
        origin: Kind of source that drafted, "none" for a plain step.
        exit_depth: Layers that a draft pass ran, or None where that is not one number.
        draft_s: Seconds spent drafting.
        verify_s: Seconds spent in the target's pass.
        host_s: Seconds spent on everything else.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    start: int
    num_tokens: int
    drafted_ids: tuple[int, ...] = ()
    draft_probs: tuple[float | None, ...] = ()
    num_accepted: int = 0
    rejected_target_prob: float | None = None
    origin: str = "none"
    exit_depth: int | None = None
    draft_s: float = 0.0
    verify_s: float = 0.0
    host_s: float = 0.0

    @property
    def num_drafted(self) -> int:
        """Number of draft tokens."""
        return len(self.drafted_ids)

    @property
    def was_corrected(self) -> bool:
        """Whether the target's own token stands where the draft had another one."""
        return self.num_accepted < min(self.num_drafted, self.num_tokens)

    @property
    def rejected_ids(self) -> tuple[int, ...]:
        """Draft tokens that the target's token replaced; what a stop condition cut off was not rejected."""
        return self.drafted_ids[self.num_accepted :] if self.was_corrected else ()

    def fates(self) -> tuple[str, ...]:
        """One of :data:`FATES` for each committed token."""
        if self.start == 0:
            return ("first",)
        own = "plain" if not self.num_drafted else "corrected" if self.was_corrected else "bonus"
        return ("accepted",) * self.num_accepted + (own,) * (self.num_tokens - self.num_accepted)
