"""What a plan would draft at a row of a trace, told from scores instead of passes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from selfspec_calibrate.ngram_rows import NgramRows
    from selfspec_calibrate.scoring import TokenScores
    from selfspec_runtime.controllers.controller import Controller


@dataclass(frozen=True)
class Proposal:
    """A draft as far as counting and costing need it.

    Attributes:
        origin: Kind of the source that drafted, "none" for a plain step.
        num_drafted: Draft tokens.
        accept: For each draft token the chance that it is accepted, given that those before it were; shorter than
            the draft where the trace ends inside it.
    """

    origin: str = "none"
    num_drafted: int = 0
    accept: tuple[float, ...] = ()


NOTHING = Proposal()


class Proposer(ABC):
    """Stands for a draft source."""

    @abstractmethod
    def at(self, row: int, *, budget: int, room: int) -> Proposal:
        """The draft that starts at a row.

        Args:
            row: The round's first draft token is the one that follows ``output_ids[row]``.
            budget: Most tokens that the controller wants, cut to the room; at least 1.
            room: Most tokens that still fit.
        """


class PassProposer(Proposer):
    """Drafts by passes, whose tokens were scored at every row.

    Each row was scored in the state that follows the target's own tokens. A draft token whose forerunners were
    accepted was drafted in that state too, but for the draft's own keys and values inside the block; after a
    rejected token the row's confidence stands in for that of a state which the trace has not.

    Args:
        scores: Per row the chance of acceptance and the confidence, ``[T]``.
        controller: Decides after each token whether to go on.
        origin: Kind of the source.
    """

    def __init__(self, scores: TokenScores, controller: Controller, *, origin: str) -> None:
        self._accept = tuple(scores.accept.tolist())
        self._confidence = tuple(scores.confidence.tolist())
        self._controller = controller
        self._origin = origin

    def at(self, row: int, *, budget: int, room: int) -> Proposal:
        """One token per pass until the budget is spent or the controller has enough."""
        drafted = self._length(row, budget) if self._controller.needs_confidence else budget
        return Proposal(self._origin, drafted, self._accept[row : row + drafted])

    def _length(self, row: int, budget: int) -> int:
        for drafted, confidence in enumerate(self._confidence[row : row + budget], start=1):
            if drafted == budget or not self._controller.wants_more(drafted, confidence):
                return drafted
        # Past the trace's end nothing is known: taken to be drafted, so that its time is not left out.
        return budget


class NgramProposer(Proposer):
    """Drafts by lookup; whether its tokens are accepted is known exactly.

    That holds for sampled traces too: a token chosen without randomness is accepted exactly when the target draws it.

    Args:
        rows: The trace's lookups.
        limit: The source's own limit, or None for the controller's budget.
    """

    def __init__(self, rows: NgramRows, *, limit: int | None) -> None:
        self._rows = rows
        self._limit = limit

    def at(self, row: int, *, budget: int, room: int) -> Proposal:
        """The longest match's continuation, cut to the limit."""
        most = budget if self._limit is None else min(room, self._limit)
        drafted = min(self._rows.available[row], most)
        if drafted == 0:
            return NOTHING
        accepted = min(self._rows.matched[row], drafted)
        known = min(drafted, len(self._rows.available) - row)
        return Proposal("ngram", drafted, (1.0,) * accepted + (0.0,) * (known - accepted))


class FirstOfProposer(Proposer):
    """Takes the first draft that is not empty.

    Args:
        proposers: In the order in which they are asked.
    """

    def __init__(self, proposers: tuple[Proposer, ...]) -> None:
        self._proposers = proposers

    def at(self, row: int, *, budget: int, room: int) -> Proposal:
        """Asks one after the other."""
        proposals = (proposer.at(row, budget=budget, room=room) for proposer in self._proposers)
        return next((proposal for proposal in proposals if proposal.num_drafted), NOTHING)
