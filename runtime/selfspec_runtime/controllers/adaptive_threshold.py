"""A confidence threshold that follows the acceptance rate (Draft&Verify, Zhang et al. 2309.08168, section 3.3)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from selfspec_runtime.controllers.confidence import ConfidenceController
from selfspec_runtime.controllers.controller import ControllerSpec


class AdaptiveThresholdController(ConfidenceController):
    """Raises the threshold while too few tokens are accepted, and lowers it where drafts were stopped too early.

    After each round, with ``rate`` the averaged acceptance rate::

        rate      = rate_weight * rate + (1 - rate_weight) * accepted / drafted
        wanted    = threshold + step   if rate < target_rate
                    threshold          else, if the draft was not stopped by the threshold
                    threshold - step   else
        threshold = threshold_weight * threshold + (1 - threshold_weight) * wanted

    As with a fixed threshold the token at which the draft turned unsure is kept.

    Args:
        num_draft_tokens: The most tokens to draft per round.
        threshold: The first threshold.
        target_rate: Acceptance rate to keep.
        step: How far the wanted threshold lies from the present one.
        rate_weight: Weight of the past in the averaged rate.
        threshold_weight: Weight of the present threshold in the next one.
    """

    def __init__(
        self,
        num_draft_tokens: int,
        threshold: float,
        *,
        target_rate: float = 0.9,
        step: float = 0.01,
        rate_weight: float = 0.5,
        threshold_weight: float = 0.9,
    ) -> None:
        super().__init__(num_draft_tokens, threshold)
        self._first_threshold = threshold
        self.target_rate = target_rate
        self.step = step
        self.rate_weight = rate_weight
        self.threshold_weight = threshold_weight
        self._rate = target_rate
        self._was_unsure = False

    def wants_more(self, num_drafted: int, confidence: float) -> bool:
        """Goes on while sure and within the budget; notes which of the two ended the draft, if one of them does."""
        self._was_unsure = confidence < self.threshold
        return super().wants_more(num_drafted, confidence)

    def observe(
        self, *, num_drafted: int, num_accepted: int, num_passes: int | None = None, num_verified: int | None = None
    ) -> None:
        """Moves the threshold; a draft without passes was looked up, and no threshold had a say in it."""
        del num_verified
        if num_drafted == 0 or num_passes == 0:
            return
        rate = num_accepted / num_drafted
        self._rate = self.rate_weight * self._rate + (1.0 - self.rate_weight) * rate
        wanted = self._wanted(stopped=self._was_unsure and num_drafted < self.num_draft_tokens)
        self._was_unsure = False
        moved = self.threshold_weight * self.threshold + (1.0 - self.threshold_weight) * wanted
        self.threshold = min(max(moved, 0.0), 1.0)

    def reset(self) -> None:
        """Goes back to the first threshold."""
        self.threshold = self._first_threshold
        self._rate = self.target_rate
        self._was_unsure = False

    def _wanted(self, *, stopped: bool) -> float:
        if self._rate < self.target_rate:
            return self.threshold + self.step
        return self.threshold - self.step if stopped else self.threshold


class AdaptiveThresholdSpec(ControllerSpec):
    """Plan entry for a threshold that follows the acceptance rate.

    Attributes:
        num_draft_tokens: The most tokens to draft per round.
        draft_confidence_threshold: The first threshold.
        target_acceptance_rate: Acceptance rate to keep.
        threshold_step: How far one round may move the threshold, before averaging.
    """

    kind: Literal["adaptive_threshold"] = "adaptive_threshold"
    num_draft_tokens: int = Field(default=8, ge=1, le=64)
    draft_confidence_threshold: float = Field(default=0.6, ge=0.0, le=1.0)
    target_acceptance_rate: float = Field(default=0.9, gt=0.0, lt=1.0)
    threshold_step: float = Field(default=0.01, gt=0.0, le=0.5)

    @property
    def learns(self) -> bool:
        """The threshold depends on earlier rounds."""
        return True

    @property
    def max_draft_tokens(self) -> int:
        """The most that it ever drafts."""
        return self.num_draft_tokens

    def _description(self) -> str:
        """For example ``up to 8 drafts, threshold adapted to 0.90 accepted``."""
        return f"up to {self.num_draft_tokens} drafts, threshold adapted to {self.target_acceptance_rate:.2f} accepted"

    def _controller(self) -> AdaptiveThresholdController:
        return AdaptiveThresholdController(
            self.num_draft_tokens,
            self.draft_confidence_threshold,
            target_rate=self.target_acceptance_rate,
            step=self.threshold_step,
        )
