"""What every controller offers."""

from __future__ import annotations

from abc import ABC, abstractmethod

from pydantic import BaseModel, ConfigDict

from selfspec_runtime.controllers.costs import RoundCosts


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

    def observe(
        self, *, num_drafted: int, num_accepted: int, num_passes: int | None = None, num_verified: int | None = None
    ) -> None:
        """Learns the outcome of a round.

        Args:
            num_drafted: Draft tokens that follow one another; 0 for a plain step.
            num_accepted: Draft tokens that were committed.
            num_passes: Draft passes; as many as draft tokens by default.
            num_verified: Draft tokens in the verification, side branches included; no branches by default.
        """
        del num_drafted, num_accepted, num_passes, num_verified

    def reset(self) -> None:  # noqa: B027 - most controllers have nothing to forget
        """Forgets what was learnt, as before a new generation."""


class ControllerSpec(BaseModel, ABC):
    """What a plan says about a controller.

    Attributes:
        costs: What rounds cost on the machine that was calibrated; None where that is not known.
        fallback: Whether decoding turns plain while speculation loses, which takes ``costs`` to tell.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    costs: RoundCosts | None = None
    fallback: bool = True

    @property
    def falls_back(self) -> bool:
        """Whether decoding turns plain while speculation loses."""
        return self.fallback and self.costs is not None

    @property
    def learns(self) -> bool:
        """Whether decisions depend on earlier rounds, so that rounds cannot be replayed one by one."""
        return self.falls_back

    def build(self) -> Controller:
        """Makes a controller in its initial state."""
        from selfspec_runtime.controllers.fallback import FallbackController

        controller = self._controller()
        if self.costs is None or not self.fallback:
            return controller
        return FallbackController(controller, self.costs)

    def describe(self) -> str:
        """Short form for tables."""
        return self._description() + (", plain while they lose" if self.falls_back else "")

    @property
    @abstractmethod
    def max_draft_tokens(self) -> int:
        """The most tokens a round can draft; verification is at most one row wider."""

    @abstractmethod
    def _controller(self) -> Controller:
        """Makes the controller itself, without fallback."""

    @abstractmethod
    def _description(self) -> str: ...
