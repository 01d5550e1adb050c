"""Which plans a calibration may choose from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from selfspec_calibrate.skip_ranking import SkipRanking
from selfspec_runtime.controllers.confidence import ConfidenceSpec
from selfspec_runtime.controllers.fixed import FixedSpec

if TYPE_CHECKING:
    from selfspec_calibrate.sensitivity import Sensitivity
    from selfspec_calibrate.settings import Family
    from selfspec_runtime.controllers.registry import AnyControllerSpec
    from selfspec_runtime.layer_skip import LayerSkipSet

PASS_FAMILIES: tuple[Family, ...] = ("early_exit", "layer_skip", "quantized")
LOOKUP_FAMILIES: tuple[Family, ...] = ("ngram", "suffix")

#: Largest shares of all sub-layers that a skip set, and one on top of a quantised copy, may leave out.
MAX_SKIPPED = 0.7
MAX_SKIPPED_QUANTIZED = 0.125

#: Longest n-gram to begin a lookup with, and how much shorter than it the shortest may be.
MAX_MIN_MATCH = 4
MAX_SPAN = 3

#: Draft tokens per token of a matched suffix, and shares below which its continuation ends.
TOKENS_PER_MATCH = (0.5, 1.0, 2.0, 4.0, 8.0)
MIN_PROBABILITIES = (0.0, 0.1, 0.3)

#: Probabilities below which a draft may stop.
THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """The plans to choose from; plain decoding is not among them.

    Attributes:
        num_layers: The model's layers.
        families: Kinds of draft that the user allows.
        max_draft_tokens: Longest draft.
        linear_exits: Exit layers for which a linear head is fitted.
        linear_ranks: Ranks below the whole that these heads may have, ascending.
        sensitivity: Agreement without each sub-layer; None if skip sets are not to be searched.
        quantized_available: Whether a quantised copy can be made on this device.
        attention_s: Seconds that leaving one attention out saves per draft pass.
        mlp_s: Seconds that leaving one MLP out saves; only the ratio of the two matters.
        skip_fronts: Skip sets found by dynamic programming over hidden states, to start from.
    """

    num_layers: int
    families: tuple[Family, ...]
    max_draft_tokens: int
    linear_exits: tuple[int, ...] = ()
    linear_ranks: tuple[int, ...] = ()
    sensitivity: Sensitivity | None = None
    quantized_available: bool = False
    attention_s: float = 1.0
    mlp_s: float = 1.0
    skip_fronts: tuple[LayerSkipSet, ...] = ()

    @cached_property
    def ranking(self) -> SkipRanking | None:
        """What is known of single sub-layers, if anything."""
        if self.sensitivity is None:
            return None
        return SkipRanking(self.sensitivity, self.attention_s, self.mlp_s)

    @cached_property
    def pass_families(self) -> tuple[Family, ...]:
        """Families that draft by passes and that this model and device have.

        Those that the user allows; if n-gram first is all that is allowed, then any.
        """
        available = {
            "early_exit": self.num_layers > 1,
            "layer_skip": self.ranking is not None,
            "quantized": self.quantized_available,
        }
        present = tuple(family for family in PASS_FAMILIES if available[family])
        return tuple(family for family in present if family in self.families) or present

    @cached_property
    def lookup_families(self) -> tuple[Family, ...]:
        """Families of lookups that may stand before passes: those that the user allows, n-grams if none is."""
        return tuple(family for family in LOOKUP_FAMILIES if family in self.families) or LOOKUP_FAMILIES[:1]

    @cached_property
    def searched(self) -> tuple[Family, ...]:
        """The allowed families that this model and device have."""
        present = (*self.pass_families, *LOOKUP_FAMILIES, *(("ngram_first",) if self.pass_families else ()))
        return tuple(family for family in self.families if family in present)

    @property
    def max_skipped(self) -> int:
        """Most sub-layers that a skip set leaves out."""
        return self._share(MAX_SKIPPED)

    @property
    def max_skipped_quantized(self) -> int:
        """Most sub-layers left out on top of a quantised copy."""
        return self._share(MAX_SKIPPED_QUANTIZED)

    def controllers(self, family: Family) -> tuple[AnyControllerSpec, ...]:
        """The controllers to replay for a source of a family; a lookup has no confidence to stop at."""
        longest = self.max_draft_tokens
        fixed = tuple(FixedSpec(num_draft_tokens=n) for n in range(1, longest + 1))
        if family in LOOKUP_FAMILIES or longest == 1:
            return fixed
        return fixed + tuple(
            ConfidenceSpec(num_draft_tokens=longest, draft_confidence_threshold=threshold) for threshold in THRESHOLDS
        )

    def _share(self, share: float) -> int:
        return 0 if self.ranking is None else max(int(share * len(self.ranking.losses)), 1)
