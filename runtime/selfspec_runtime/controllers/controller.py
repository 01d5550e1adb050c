"""What every controller offers."""

from __future__ import annotations

from abc import ABC, abstractmethod

from pydantic import BaseModel, ConfigDict


class Controller(ABC):
    """Decides how many tokens to draft in a round.

    A decision may look at the draft's law and at tokens that are kept, never at a sampled token that is then
    dropped: that would bias the output law.
    """

    #: Whether :meth:`wants_more` needs the draft's confidence; computing it costs a softmax.
    needs_confidence: bool = False

    @abstractmethod
    def budget(self) -> int:
        """The most tokens to draft in the coming round; 0 means a plain step."""

    def wants_more(self, num_drafted: int, confidence: float) -> bool:
        """Whether to go on after a drafted token, which is kept in any case.

        Args:
            num_drafted: Tokens drafted so far in this round.
            confidence: Probability that the draft's unprocessed law gives to its likeliest token; 1.0 unless
                :attr:`needs_confidence`.
        """
        del confidence
        return num_drafted < self.budget()

    def observe(self, *, num_drafted: int, num_accepted: int) -> None:
        """Learns the outcome of a round."""
        del num_drafted, num_accepted

    def reset(self) -> None:  # noqa: B027 - most controllers have nothing to forget
        """Forgets what was learnt, as before a new generation."""


class ControllerSpec(BaseModel, ABC):
    """What a plan says about a controller."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @abstractmethod
    def build(self) -> Controller:
        """Makes a controller in its initial state."""

    @abstractmethod
    def describe(self) -> str:
        """Short form for tables."""

    @property
    @abstractmethod
    def max_draft_tokens(self) -> int:
        """The most tokens a round can draft; verification is at most one row wider."""
