"""A fixed number of draft tokens per round (Leviathan et al. 2211.17192)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from selfspec_runtime.controllers.controller import Controller, ControllerSpec


class FixedController(Controller):
    """Always drafts the same number of tokens.

    Args:
        num_draft_tokens: Tokens to draft per round.
    """

    def __init__(self, num_draft_tokens: int) -> None:
        self.num_draft_tokens = num_draft_tokens

    def budget(self) -> int:
        """The fixed number."""
        return self.num_draft_tokens


class FixedSpec(ControllerSpec):
    """Plan entry for a fixed number of draft tokens."""

    kind: Literal["fixed"] = "fixed"
    num_draft_tokens: int = Field(default=4, ge=1, le=64)

    def _controller(self) -> FixedController:
        return FixedController(self.num_draft_tokens)

    def _description(self) -> str:
        """For example ``4 drafts``."""
        return f"{self.num_draft_tokens} draft{'s' if self.num_draft_tokens > 1 else ''}"

    @property
    def max_draft_tokens(self) -> int:
        """The fixed number."""
        return self.num_draft_tokens
