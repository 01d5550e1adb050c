"""What every draft source offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from selfspec_runtime.drafts.overhead import Overhead

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from selfspec_runtime.cache import KVCache
    from selfspec_runtime.controllers.controller import Controller
    from selfspec_runtime.drafts.draft import Draft
    from selfspec_runtime.rules import AcceptanceRule
    from selfspec_runtime.sequence import Sequence
    from selfspec_runtime.target import Target


@dataclass(frozen=True)
class RoundContext:
    """What a source may look at while it drafts.

    Attributes:
        sequence: The committed tokens.
        cache: The shared cache; it holds everything committed but the last token.
        rule: Turns draft logits into a token and the law it was drawn from.
        controller: Decides how far to draft.
        budget: The most tokens to draft: the controller's budget, cut to what still fits.
        room: The most tokens that still fit, whatever the controller says.
    """

    sequence: Sequence
    cache: KVCache
    rule: AcceptanceRule
    controller: Controller
    budget: int
    room: int


class DraftSource(ABC):
    """Proposes tokens that the target then verifies.

    Contract: :meth:`propose` leaves the committed part of the cache and the model untouched, also when it
    raises; it returns at most ``budget`` tokens (at most ``room`` where the plan gives the source a limit of its
    own), and with each the very law it was drawn from.
    """

    @abstractmethod
    def propose(self, context: RoundContext) -> Draft:
        """Drafts tokens that follow the committed ones; an empty draft asks for a plain step."""

    def observe(self, draft: Draft, *, num_accepted: int) -> None:
        """Learns the outcome of a round.

        Args:
            draft: What was drafted.
            num_accepted: How many tokens of the chain stood; a side branch that took the next one's place is none.
        """
        del draft, num_accepted

    def reset(self) -> None:  # noqa: B027 - most sources have nothing to forget
        """Forgets what was learnt, as before a new generation."""

    @property
    def extra_bytes(self) -> int:
        """Memory held beyond the model and its cache."""
        return 0

    @property
    def overhead(self) -> Overhead:
        """What choosing how to draft has cost since the last reset, beside drafting."""
        return Overhead()


class SourceSpec(BaseModel, ABC):
    """What a plan says about a source."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @abstractmethod
    def build(self, target: Target, arrays: Mapping[str, Tensor]) -> DraftSource:
        """Makes the source.

        Args:
            target: The model it drafts for.
            arrays: Fitted arrays of the calibration file, by name.

        Raises:
            PlanError: The model has not what the plan asks for.
        """

    @abstractmethod
    def validate_for(self, num_layers: int) -> None:
        """Checks the spec against a number of layers.

        Raises:
            PlanError: It does not fit.
        """

    @abstractmethod
    def describe(self) -> str:
        """Short form for tables."""

    def parts(self) -> Iterator[SourceSpec]:
        """This entry and every one within it, outer ones first."""
        yield self
        for name in type(self).model_fields:
            inner = getattr(self, name)
            if isinstance(inner, SourceSpec):
                yield from inner.parts()

    def array_names(self) -> tuple[str, ...]:
        """Names of the calibration's arrays without which the source cannot be made."""
        return ()
