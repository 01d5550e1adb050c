"""What a plan would draft at each row of a trace, told from scores instead of passes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from selfspec_calibrate.lookup_rows import LookupRows
    from selfspec_calibrate.scoring import TokenScores
    from selfspec_runtime.controllers.controller import Controller

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

PLAIN_ORIGIN = "none"


@dataclass(frozen=True)
class Proposals:
    """For each row the draft of a round that starts there: its first token is the one that follows the row's.

    Attributes:
        origins: ``[T]`` names of the kinds of source that draft, "none" where nothing is drafted.
        num_drafted: int64 ``[T]``, draft tokens.
        accept: float64 ``[T, D]``, for each draft token the chance that it is accepted given that those before it
            were; meaningless past the draft's and the trace's end.
    """

    origins: NDArray[np.str_]
    num_drafted: Ints
    accept: Floats


class Proposer(ABC):
    """Stands for a draft source."""

    @abstractmethod
    def propose(self, *, budget: Ints, room: Ints) -> Proposals:
        """Drafts at every row.

        Args:
            budget: ``[T]``, most tokens that the controller wants, cut to the room. Nothing is drafted at 0.
            room: ``[T]``, most tokens that still fit.
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
        self._scores = scores
        self._controller = controller
        self._origin = origin

    def propose(self, *, budget: Ints, room: Ints) -> Proposals:
        """One token per pass until the budget is spent or the controller has enough."""
        del room
        drafted = self._lengths(budget) if self._controller.needs_confidence else budget
        return Proposals(_origins(self._origin, drafted), drafted, _ahead(self._scores.accept, _widest(drafted)))

    def _lengths(self, budget: Ints) -> Ints:
        confidence = self._scores.confidence.tolist()
        lengths = [self._length(confidence, row, most) for row, most in enumerate(budget.tolist())]
        return np.array(lengths, dtype=np.int64)

    def _length(self, confidence: list[float], row: int, budget: int) -> int:
        for place in range(min(budget, len(confidence) - row)):
            if not self._controller.wants_more(place + 1, confidence[row + place]):
                return place + 1
        # Past the trace's end nothing is known: taken to be drafted, so that its time is not left out.
        return budget


class LookupProposer(Proposer):
    """Drafts by lookup; whether its tokens are accepted is known exactly.

    That holds for sampled traces too: a token chosen without randomness is accepted exactly when the target draws it.

    Args:
        rows: The trace's lookups.
        limit: The source's own limit, or None for the controller's budget.
        origin: Kind of the source.
    """

    def __init__(self, rows: LookupRows, *, limit: int | None, origin: str) -> None:
        self._rows = rows
        self._limit = limit
        self._origin = origin

    def propose(self, *, budget: Ints, room: Ints) -> Proposals:
        """The longest match's continuation, cut to the limit."""
        most = budget if self._limit is None else np.where(budget > 0, np.minimum(room, self._limit), 0)
        drafted = np.minimum(self._rows.available, most)
        accept = np.arange(_widest(drafted)) < self._rows.matched[:, None]
        return Proposals(_origins(self._origin, drafted), drafted, accept.astype(np.float64))


class FirstOfProposer(Proposer):
    """Takes the first draft that is not empty.

    Args:
        first: Asked first.
        then: Asked where the first one drafts nothing.
    """

    def __init__(self, first: Proposer, then: Proposer) -> None:
        self._first = first
        self._then = then

    def propose(self, *, budget: Ints, room: Ints) -> Proposals:
        """Asks one after the other."""
        one, other = (proposer.propose(budget=budget, room=room) for proposer in (self._first, self._then))
        found = one.num_drafted > 0
        width = max(one.accept.shape[1], other.accept.shape[1])
        return Proposals(
            np.where(found, one.origins, other.origins),
            np.where(found, one.num_drafted, other.num_drafted),
            np.where(found[:, None], _widened(one.accept, width), _widened(other.accept, width)),
        )


def plain_proposals(num_rows: int) -> Proposals:
    """Nothing is drafted anywhere."""
    nothing = np.zeros(num_rows, dtype=np.int64)
    return Proposals(_origins(PLAIN_ORIGIN, nothing), nothing, np.zeros((num_rows, 0)))


def _origins(origin: str, drafted: Ints) -> NDArray[np.str_]:
    return np.where(drafted > 0, origin, PLAIN_ORIGIN)


def _widest(drafted: Ints) -> int:
    return int(drafted.max(initial=0))


def _ahead(chances: NDArray[np.float32], width: int) -> Floats:
    """``[T, width]``: the chances at each row and at those after it."""
    padded = np.concatenate([chances.astype(np.float64), np.zeros(width)])
    ahead: Floats = padded[np.arange(len(chances))[:, None] + np.arange(width)]
    return ahead


def _widened(accept: Floats, width: int) -> Floats:
    missing = width - accept.shape[1]
    wide: Floats = np.concatenate([accept, np.zeros((len(accept), missing))], axis=1)
    return wide
