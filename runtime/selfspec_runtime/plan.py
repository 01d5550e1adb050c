"""The draft plan: what to run, as data."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from selfspec_runtime.controllers.fixed import FixedSpec
from selfspec_runtime.controllers.registry import AnyControllerSpec
from selfspec_runtime.drafts.registry import AnySourceSpec
from selfspec_runtime.schedulers.registry import AnySchedulerSpec


class DraftPlan(BaseModel):
    """A draft source and a controller, and perhaps a scheduler.

    Attributes:
        source: What drafts; None for plain decoding.
        controller: How far it drafts.
        scheduler: When it drafts; None for drafting and verifying in turn.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: AnySourceSpec | None = None
    controller: AnyControllerSpec = FixedSpec()
    scheduler: AnySchedulerSpec | None = None

    @property
    def is_plain(self) -> bool:
        """Whether nothing is drafted."""
        return self.source is None

    @property
    def max_draft_tokens(self) -> int:
        """The most tokens one round can draft, side branches included."""
        if self.source is None:
            return 0
        chain = getattr(self.source, "chain", self.source)
        own = getattr(chain, "num_draft_tokens", None) or getattr(
            getattr(chain, "ngram", None), "num_draft_tokens", None
        )
        return max(self.controller.max_draft_tokens, own or 0) + self.max_branches

    @property
    def max_branches(self) -> int:
        """The most side branches that one round can draft beside its chain."""
        return int(getattr(self.source, "max_branches", 0))

    def validate_for(self, num_layers: int) -> None:
        """Checks the plan against a number of layers.

        Raises:
            PlanError: An exit or a skipped layer does not exist.
        """
        if self.source is not None:
            self.source.validate_for(num_layers)

    def describe(self) -> str:
        """Short form for tables, for example ``exit after layer 8, 4 drafts``."""
        if self.source is None:
            return "plain decoding"
        parts = (self.source, self.controller, self.scheduler)
        return ", ".join(part.describe() for part in parts if part is not None)


PLAIN = DraftPlan()
