"""The record of one round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from selfspec_runtime.stopping import FinishReason


@dataclass(frozen=True, kw_only=True)
class SpeculativeStep:
    """What one round drafted and committed.

    Attributes:
        round: Number of the round, 0 for the token that the prompt's own pass gives.
        token_ids: Committed tokens: accepted draft tokens, then the target's own.
        text: The text that these tokens completed; the pieces of all steps add up to the final text.
        drafted_ids: What the draft proposed, rejected tokens included: a chain, then side branches if any.
        num_accepted: Committed tokens that came from the draft, the path through its tree.
        origin: Kind of source that drafted, "none" for a plain step.
        exit_depth: Layers that a draft pass ran, or None where that is not one number.
        draft_s: Seconds spent drafting.
        verify_s: Seconds spent in the target's pass.
        host_s: Seconds spent on everything else.
        finish_reason: Set on the last step.
        branch_places: For each side branch, the last of ``drafted_ids``, the place in the chain that it stands for.
        accepted_branch: Number of the branch that the last accepted token is of; None if it is the chain's.
    """

    round: int
    token_ids: tuple[int, ...]
    text: str
    drafted_ids: tuple[int, ...] = ()
    num_accepted: int = 0
    origin: str = "none"
    exit_depth: int | None = None
    draft_s: float = 0.0
    verify_s: float = 0.0
    host_s: float = 0.0
    finish_reason: FinishReason | None = None
    branch_places: tuple[int, ...] = ()
    accepted_branch: int | None = None

    @property
    def num_drafted(self) -> int:
        """Number of draft tokens, side branches included."""
        return len(self.drafted_ids)
