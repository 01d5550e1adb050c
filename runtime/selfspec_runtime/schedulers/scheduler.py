"""What every scheduler offers; this one drafts and verifies in turn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from selfspec_runtime.cache import KVCache
    from selfspec_runtime.controllers.controller import Controller
    from selfspec_runtime.drafts.draft import Draft
    from selfspec_runtime.drafts.source import DraftSource, RoundContext
    from selfspec_runtime.plan import DraftPlan
    from selfspec_runtime.rules import AcceptanceRule
    from selfspec_runtime.sequence import Sequence
    from selfspec_runtime.target import Target


class Scheduler:
    """Drafts when the decoder asks for a draft, and does nothing while the target verifies.

    A generation calls :meth:`reset`; each of its rounds :meth:`draft` (unless it is a plain step), :meth:`start`
    right before the target's pass and :meth:`observe` after it; and at the end, however it comes, :meth:`close`.
    """

    def draft(self, source: DraftSource, context: RoundContext) -> Draft:
        """The draft of a round."""
        return source.propose(context)

    def start(
        self, sequence: Sequence, draft: Draft, cache: KVCache, *, rule: AcceptanceRule, controller: Controller
    ) -> None:
        """Says that the target's pass over a draft begins.

        Args:
            sequence: The committed tokens.
            draft: What is verified; empty in a plain step.
            cache: The shared cache; it holds everything committed but the last token.
            rule: Of the generation.
            controller: Of the generation.
        """
        del sequence, draft, cache, rule, controller

    def observe(self, *, draft_s: float, verify_s: float) -> None:
        """Learns what the round took, in seconds."""
        del draft_s, verify_s

    def reset(self) -> None:
        """Forgets what was learnt, as before a new generation."""

    def close(self) -> None:
        """Ends whatever still runs."""

    @property
    def extra_bytes(self) -> int:
        """Memory held beyond the model, its cache and the source."""
        return 0

    @property
    def notices(self) -> tuple[str, ...]:
        """What the user should know about the last generation, in sentences."""
        return ()


class SchedulerSpec(BaseModel, ABC):
    """What a plan says about a scheduler."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @abstractmethod
    def build(self, target: Target, source: DraftSource, plan: DraftPlan, arrays: Mapping[str, Tensor]) -> Scheduler:
        """Makes the scheduler.

        Args:
            target: The model.
            source: What drafts.
            plan: The plan that names both.
            arrays: Fitted arrays that the plan may name.

        Raises:
            PlanError: The source cannot be scheduled so, or the machine has not what it takes.
        """

    @abstractmethod
    def describe(self) -> str:
        """Short form for tables."""
