"""What drafting and verifying cost, in plain steps, so that a controller can tell gain from loss by counting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from collections.abc import Iterable

Cost = Annotated[float, Field(gt=0.0, le=1_000.0, allow_inf_nan=False)]


class RoundCosts(BaseModel):
    """Costs relative to a plain step, as the calibration measured them; no clock is read while decoding.

    Attributes:
        draft_cost: One draft pass, head included; 0 for a lookup.
        verify_cost: Verifications of 1, 2, ... draft tokens, the host's work of a round included. Beyond the last
            entry the cost goes on rising with the mean slope; without entries every verification costs 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    draft_cost: float = Field(ge=0.0, le=1_000.0, allow_inf_nan=False)
    verify_cost: tuple[Cost, ...] = ()

    def verification(self, num_drafted: int) -> float:
        """Cost of verifying ``num_drafted`` tokens; 1 for none, which is a plain step."""
        known = len(self.verify_cost)
        if num_drafted == 0 or known == 0:
            return 1.0
        if num_drafted <= known:
            return self.verify_cost[num_drafted - 1]
        last = self.verify_cost[-1]
        return last + max(last - 1.0, 0.0) / known * (num_drafted - known)

    def of_round(self, num_drafted: int, *, num_passes: int | None = None) -> float:
        """Cost of a whole round.

        Args:
            num_drafted: Draft tokens.
            num_passes: Draft passes; as many as tokens by default.
        """
        passes = num_drafted if num_passes is None else num_passes
        return passes * self.draft_cost + self.verification(num_drafted)

    def best_length(self, chances: Iterable[float]) -> int:
        """The number of draft tokens, at least 1, that brings most tokens per cost.

        Args:
            chances: For the first, second, ... draft token the chance that it and all before it are accepted.
        """
        best, best_rate, expected = 1, 0.0, 1.0
        for number, chance in enumerate(chances, start=1):
            expected += chance
            rate = expected / self.of_round(number)
            if rate > best_rate:
                best, best_rate = number, rate
        return best
