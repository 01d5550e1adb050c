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
        drafted_ids: What the draft proposed, rejected tokens included: a chain, then side branches if any.
        draft_probs: The draft's probability of each at temperature 1; None where no law stands behind it.
        num_accepted: Committed tokens that came from the draft, the path through its tree.
        rejected_target_prob: The target's probability of the first rejected token, None where none was.
        origin: Kind of source that drafted, "none" for a plain step.
        exit_depth: Layers that a draft pass ran, or None where that is not one number.
        draft_s: Seconds spent drafting.
        verify_s: Seconds spent in the target's pass.
        host_s: Seconds spent on everything else.
        branch_places: For each side branch, the last of ``drafted_ids``, the place in the chain that it stands for.
        accepted_branch: Number of the branch that the last accepted token is of; None if it is the chain's.
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
    branch_places: tuple[int, ...] = ()
    accepted_branch: int | None = None

    @property
    def num_drafted(self) -> int:
        """Number of draft tokens, side branches included."""
        return len(self.drafted_ids)

    @property
    def drafted_per_place(self) -> tuple[int, ...]:
        """For each place of the chain how many tokens were drafted for it: its own and side branches."""
        chain = self.num_drafted - len(self.branch_places)
        return tuple(1 + self.branch_places.count(place) for place in range(chain))

    @property
    def accepted_probs(self) -> tuple[float | None, ...]:
        """The draft's probability of each accepted token."""
        if self.accepted_branch is None:
            return self.draft_probs[: self.num_accepted]
        branch = self.draft_probs[len(self.drafted_per_place) + self.accepted_branch]
        return (*self.draft_probs[: self.num_accepted - 1], branch)

    @property
    def was_corrected(self) -> bool:
        """Whether the target's own token stands where the draft had others only; behind a branch it had none."""
        return self.accepted_branch is None and self.num_accepted < min(len(self.drafted_per_place), self.num_tokens)

    @property
    def rejected_ids(self) -> tuple[int, ...]:
        """Draft tokens from the place on where the target had another one, the chain's own first.

        What a stop condition cut off was not rejected.
        """
        if not self.was_corrected:
            return ()
        places = (*range(len(self.drafted_per_place)), *self.branch_places)
        return tuple(t for t, place in zip(self.drafted_ids, places, strict=True) if place >= self.num_accepted)

    def fates(self) -> tuple[str, ...]:
        """One of :data:`FATES` for each committed token."""
        if self.start == 0:
            return ("first",)
        own = "plain" if not self.num_drafted else "corrected" if self.was_corrected else "bonus"
        return ("accepted",) * self.num_accepted + (own,) * (self.num_tokens - self.num_accepted)
