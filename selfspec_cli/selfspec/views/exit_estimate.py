"""What an early exit would bring, from agreement and measured costs: an estimate, made without decoding."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from selfspec_calibrate.cost_model import CostModel
from selfspec_calibrate.textbook import expected_tokens
from selfspec_runtime.drafts.early_exit import EarlyExitSpec

if TYPE_CHECKING:
    from selfspec_runtime.calibration import Calibration

MAX_DRAFT_TOKENS = 8
FORMULA = (
    "speedup = tokens per round × seconds of a plain step ÷ seconds of a round; tokens per round = 1 + a + … + aⁿ for "
    "an agreement a and n draft tokens (Leviathan et al. 2211.17192), seconds as measured on the calibrated machine."
)


@dataclass(frozen=True)
class ExitEstimate:
    """Estimates for every exit layer and number of draft tokens.

    Attributes:
        calibration: Where agreement and costs come from.
    """

    calibration: Calibration

    @property
    def num_layers(self) -> int:
        """How many layers the model has."""
        return self.calibration.fingerprint.num_hidden_layers

    @property
    def exits(self) -> range:
        """Exit layers, 1 .. L - 1; empty where no agreement was measured."""
        return range(1, len(self.calibration.evidence.agreement_by_exit) + 1)

    @property
    def plain_s(self) -> float:
        """Seconds of a plain round."""
        return self._cost.pass_s(1, self._context) + self._cost.host_s

    def round_s(self, exit_layer: int, num_draft_tokens: int) -> float:
        """Seconds of a round that drafts with the first ``exit_layer`` layers."""
        return self._cost.round_s(EarlyExitSpec(exit_layer=exit_layer), num_draft_tokens, self._context)

    def agreement(self, exit_layer: int) -> float:
        """The better of the raw exit's agreement and the linear head's."""
        evidence = self.calibration.evidence
        linear = evidence.agreement_by_linear_exit[exit_layer - 1 : exit_layer]
        return max(evidence.agreement_by_exit[exit_layer - 1], *(value for value in linear if value is not None), 0.0)

    def speedup(self, exit_layer: int, num_draft_tokens: int) -> float:
        """Estimated speedup over plain decoding."""
        tokens = expected_tokens(self.agreement(exit_layer), num_draft_tokens)
        return tokens * self.plain_s / self.round_s(exit_layer, num_draft_tokens)

    @cached_property
    def table(self) -> tuple[tuple[float, ...], ...]:
        """Speedups: a row for each exit, a column for 1, 2, ... draft tokens."""
        counts = range(1, MAX_DRAFT_TOKENS + 1)
        return tuple(tuple(self.speedup(exit_layer, count) for count in counts) for exit_layer in self.exits)

    @cached_property
    def _cost(self) -> CostModel:
        return CostModel(self.calibration.evidence.cost, self.num_layers)

    @property
    def _context(self) -> int:
        lengths = self.calibration.evidence.cost.context_lengths
        return lengths[len(lengths) // 2]
