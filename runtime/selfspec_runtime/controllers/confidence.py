"""Stops drafting where the draft is unsure (as in Kangaroo, 2404.18911, and Draft&Verify, 2309.08168).

The token at which the draft turned unsure is kept: dropping a token after having looked at it would bias the
law, and its pass is paid already.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from selfspec_runtime.controllers.controller import Controller, ControllerSpec


class ConfidenceController(Controller):
    """Drafts until the likeliest token's probability falls below a threshold.

    Args:
        num_draft_tokens: The most tokens to draft per round.
        threshold: Probability below which no further token is drafted.
    """

    needs_confidence = True

    def __init__(self, num_draft_tokens: int, threshold: float) -> None:
        self.num_draft_tokens = num_draft_tokens
        self.threshold = threshold

    def budget(self) -> int:
        """The most tokens to draft."""
        return self.num_draft_tokens

    def wants_more(self, num_drafted: int, confidence: float) -> bool:
        """Goes on while sure and within the budget."""
        return num_drafted < self.num_draft_tokens and confidence >= self.threshold


class ConfidenceSpec(ControllerSpec):
    """Plan entry for a confidence-stopped draft."""

    kind: Literal["confidence"] = "confidence"
    num_draft_tokens: int = Field(default=8, ge=1, le=64)
    draft_confidence_threshold: float = Field(default=0.6, ge=0.0, le=1.0)

    def _controller(self) -> ConfidenceController:
        return ConfidenceController(self.num_draft_tokens, self.draft_confidence_threshold)

    def _description(self) -> str:
        """For example ``up to 8 drafts while sure of 0.60``."""
        return f"up to {self.num_draft_tokens} drafts while sure of {self.draft_confidence_threshold:.2f}"

    @property
    def max_draft_tokens(self) -> int:
        """The budget."""
        return self.num_draft_tokens
