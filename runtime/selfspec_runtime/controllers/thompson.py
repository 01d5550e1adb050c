"""Thompson sampling of the number of drafts (EESD, Liu et al. 2406.03853, there over a trained exit)."""

from __future__ import annotations

from itertools import accumulate
from operator import mul
from random import Random
from typing import Literal

from pydantic import Field

from selfspec_runtime.controllers.controller import Controller, ControllerSpec
from selfspec_runtime.controllers.costs import RoundCosts


class ThompsonController(Controller):
    """Draws an acceptance from its posterior and drafts as many tokens as are best for it.

    Each token that was reached is a trial: accepted ones succeed, the rejected one fails. The posterior is a Beta law
    whose counts fade, so that it follows a text that changes. Its random numbers are its own and are drawn between
    rounds: they have nothing to do with the tokens' noise.

    Args:
        num_draft_tokens: The most tokens to draft per round.
        costs: What rounds cost.
        seed: Of the controller's own random numbers.
        discount: Share of the counts that a round leaves.
        prior_accepted: Pseudo-count of accepted tokens.
        prior_rejected: Pseudo-count of rejected tokens.
    """

    def __init__(
        self,
        num_draft_tokens: int,
        costs: RoundCosts,
        *,
        seed: int = 0,
        discount: float = 0.97,
        prior_accepted: float = 2.0,
        prior_rejected: float = 1.0,
    ) -> None:
        self.num_draft_tokens = num_draft_tokens
        self.costs = costs
        self.seed = seed
        self.discount = discount
        self.prior_accepted = prior_accepted
        self.prior_rejected = prior_rejected
        self._random = Random(seed)
        self._accepted = 0.0
        self._rejected = 0.0
        self._length = self._drawn()

    def budget(self) -> int:
        """The length drawn for this round."""
        return self._length

    def observe(
        self, *, num_drafted: int, num_accepted: int, num_passes: int | None = None, num_verified: int | None = None
    ) -> None:
        """Counts the trials, and draws the next length."""
        del num_passes, num_verified
        if num_drafted == 0:
            return
        self._accepted = self.discount * self._accepted + num_accepted
        self._rejected = self.discount * self._rejected + (num_accepted < num_drafted)
        self._length = self._drawn()

    def reset(self) -> None:
        """Goes back to the prior and to the first random number."""
        self._random = Random(self.seed)
        self._accepted = 0.0
        self._rejected = 0.0
        self._length = self._drawn()

    def _drawn(self) -> int:
        acceptance = self._random.betavariate(
            self.prior_accepted + self._accepted, self.prior_rejected + self._rejected
        )
        return self.costs.best_length(accumulate([acceptance] * self.num_draft_tokens, mul))


class ThompsonSpec(ControllerSpec):
    """Plan entry for Thompson sampling; the plan has to give :attr:`costs`.

    Attributes:
        num_draft_tokens: The most tokens to draft per round.
        discount: Share of the counts that a round leaves; 1 never forgets.
        seed: Of the controller's own random numbers.
        costs: What rounds cost.
    """

    kind: Literal["thompson"] = "thompson"
    num_draft_tokens: int = Field(default=8, ge=1, le=64)
    discount: float = Field(default=0.97, gt=0.0, le=1.0)
    seed: int = Field(default=0, ge=0)
    costs: RoundCosts

    @property
    def learns(self) -> bool:
        """The length depends on earlier rounds."""
        return True

    @property
    def max_draft_tokens(self) -> int:
        """The most that it ever drafts."""
        return self.num_draft_tokens

    def _description(self) -> str:
        """For example ``up to 8 drafts by Thompson sampling``."""
        return f"up to {self.num_draft_tokens} drafts by Thompson sampling"

    def _controller(self) -> ThompsonController:
        return ThompsonController(self.num_draft_tokens, self.costs, seed=self.seed, discount=self.discount)
