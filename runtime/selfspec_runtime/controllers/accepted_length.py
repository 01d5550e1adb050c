"""As many drafts as the averaged accepted lengths of earlier rounds make worthwhile, with longer ones as probes.

A draft of n tokens tells nothing about a longer one, so that an average alone never leaves a short length again;
every so often a round therefore drafts twice as many. (DISCO and dynamic lookahead, Mamou et al. 2405.04304, choose
lengths from outcomes too, by a trained classifier.)
"""

from __future__ import annotations

from itertools import accumulate
from operator import mul
from typing import Literal

from pydantic import Field

from selfspec_runtime.controllers.controller import Controller, ControllerSpec
from selfspec_runtime.controllers.costs import RoundCosts


class AcceptedLengthController(Controller):
    """Keeps for each place in a draft an exponential average of how often that place was reached and accepted.

    Args:
        num_draft_tokens: The most tokens to draft per round.
        costs: What rounds cost.
        average_weight: Weight of the newest round in the averages.
        probe_interval: Rounds from one longer draft to the next.
        first_acceptance: Acceptance of each token that is assumed at first.
    """

    def __init__(
        self,
        num_draft_tokens: int,
        costs: RoundCosts,
        *,
        average_weight: float = 0.1,
        probe_interval: int = 16,
        first_acceptance: float = 0.7,
    ) -> None:
        self.num_draft_tokens = num_draft_tokens
        self.costs = costs
        self.average_weight = average_weight
        self.probe_interval = probe_interval
        self.first_acceptance = first_acceptance
        self._chances = self._assumed()
        self._length = costs.best_length(self._chances)
        self._since_probe = 0

    def budget(self) -> int:
        """The length that brings most tokens per cost, doubled when a probe is due."""
        if self._since_probe >= self.probe_interval:
            return min(2 * self._length, self.num_draft_tokens)
        return self._length

    def observe(
        self, *, num_drafted: int, num_accepted: int, num_passes: int | None = None, num_verified: int | None = None
    ) -> None:
        """Averages the places that the draft reached; those beyond keep their ratio to the last one reached."""
        del num_passes, num_verified
        if num_drafted == 0:
            return
        reached = min(num_drafted, self.num_draft_tokens)
        self._since_probe = 0 if reached > self._length else self._since_probe + 1
        before = self._chances[reached - 1]
        for place in range(reached):
            accepted = 1.0 if place < num_accepted else 0.0
            self._chances[place] += self.average_weight * (accepted - self._chances[place])
        ratio = self._chances[reached - 1] / before if before > 0.0 else 1.0
        for place in range(reached, self.num_draft_tokens):
            self._chances[place] = min(self._chances[place] * ratio, self._chances[place - 1])
        self._length = self.costs.best_length(self._chances)

    def reset(self) -> None:
        """Assumes the first acceptance again."""
        self._chances = self._assumed()
        self._length = self.costs.best_length(self._chances)
        self._since_probe = 0

    def _assumed(self) -> list[float]:
        return list(accumulate([self.first_acceptance] * self.num_draft_tokens, mul))


class AcceptedLengthSpec(ControllerSpec):
    """Plan entry for a length chosen from averaged accepted lengths; the plan has to give :attr:`costs`.

    Attributes:
        num_draft_tokens: The most tokens to draft per round.
        average_weight: Weight of the newest round in the averages.
        probe_interval: Rounds from one longer draft to the next.
        costs: What rounds cost.
    """

    kind: Literal["accepted_length"] = "accepted_length"
    num_draft_tokens: int = Field(default=8, ge=1, le=64)
    average_weight: float = Field(default=0.1, gt=0.0, le=1.0)
    probe_interval: int = Field(default=16, ge=1, le=1_000)
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
        """For example ``up to 8 drafts by accepted length``."""
        return f"up to {self.num_draft_tokens} drafts by accepted length"

    def _controller(self) -> AcceptedLengthController:
        return AcceptedLengthController(
            self.num_draft_tokens,
            self.costs,
            average_weight=self.average_weight,
            probe_interval=self.probe_interval,
        )
