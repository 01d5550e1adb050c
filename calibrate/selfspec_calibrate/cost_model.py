"""Predicts what a round of a plan costs, from measured passes."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from selfspec_calibrate.cost_table import measure_costs
from selfspec_runtime.drafts.branching import BranchingSpec
from selfspec_runtime.drafts.dynamic_skips import DynamicSkipSpec
from selfspec_runtime.drafts.early_exit import EarlyExitSpec
from selfspec_runtime.drafts.fewer_experts import FewerExpertsSpec
from selfspec_runtime.drafts.first_of import NgramFirstSpec
from selfspec_runtime.drafts.quantized import QuantizedSpec
from selfspec_runtime.drafts.skipped import LayerSkipSpec
from selfspec_runtime.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec_runtime.calibration import CostTable
    from selfspec_runtime.drafts.registry import AnySourceSpec
    from selfspec_runtime.layer_skip import LayerSkipSet

__all__ = ["CostModel", "measure_costs"]


class CostModel:
    """Seconds of passes, drafts and verifications.

    A one-row pass is ``head_s`` and ``num_layers`` equal layers; a layer is an attention, an MLP and a rest (norms)
    that is saved only where both are left out. A linear exit head's own product is not counted.

    Args:
        table: What was measured.
        num_layers: Number of decoder layers.
    """

    def __init__(self, table: CostTable, num_layers: int) -> None:
        self.table = table
        self.num_layers = num_layers

    @property
    def host_s(self) -> float:
        """Seconds of a round outside of passes."""
        return self.table.host_s

    @property
    def head_s(self) -> float:
        """Seconds of a one-row pass without layers."""
        return self.table.head_s

    def pass_s(self, rows: int, context: int) -> float:
        """Seconds of a full pass.

        Args:
            rows: Tokens in the pass, at least 1; as measured, and beyond the most measured in proportion.
            context: Positions before it; linear between those measured and beyond them.
        """
        return self._at([_rows_s(measured, rows) for measured in self.table.pass_s], context)

    def layer_s(self, context: int) -> float:
        """Seconds of one whole layer in a one-row pass."""
        return max(self.pass_s(1, context) - self.head_s, 0.0) / self.num_layers

    def attention_s(self, context: int) -> float:
        """Seconds that leaving one attention out saves in a one-row pass."""
        return self._at(self.table.attention_s, context) * self._fit(context)

    def mlp_s(self, context: int) -> float:
        """Seconds that leaving one MLP out saves in a one-row pass."""
        return self.table.mlp_s * self._fit(context)

    def draft_pass_s(self, spec: AnySourceSpec | None, context: int) -> float:
        """Seconds of one draft pass, head included.

        Args:
            spec: A source; of "n-gram first, else passes" the passes are meant, and of a tree its chain. Of one that
                changes its skip set while decoding, the first set.
            context: Positions before the pass.

        Returns:
            0 for a source that runs no passes.

        Raises:
            PlanError: A quantised source, or fewer experts, of which nothing was measured.
        """
        if isinstance(spec, NgramFirstSpec):
            return self.draft_pass_s(spec.then, context)
        if isinstance(spec, BranchingSpec):
            return self.draft_pass_s(spec.chain, context)
        if isinstance(spec, FewerExpertsSpec):
            message = f"The cost of '{spec.describe()}' is not known: what an expert costs is not measured."
            raise PlanError(message)
        if isinstance(spec, DynamicSkipSpec):
            return self.pass_s(1, context) - self._saved_s(spec.first_skip(self.num_layers), context)
        if isinstance(spec, EarlyExitSpec):
            return self.head_s + spec.exit_layer * self.layer_s(context)
        if isinstance(spec, LayerSkipSpec):
            return self.pass_s(1, context) - self._saved_s(spec.skip, context)
        if isinstance(spec, QuantizedSpec):
            return self._quantized_s(spec, context)
        return 0.0

    def prefix_s(self, spec: AnySourceSpec | None, context: int) -> float:
        """Seconds that the verification of an early exit spends on the last draft token's way to the exit.

        That token never went through the first layers while drafting; 0 for other sources.
        """
        spec = _passes_of(spec)
        return spec.exit_layer * self.layer_s(context) if isinstance(spec, EarlyExitSpec) else 0.0

    def verify_s(self, spec: AnySourceSpec | None, num_drafted: int, context: int) -> float:
        """Seconds of a whole verification.

        Args:
            spec: What drafted. A block that an early exit drafted runs the first layers for its last token only
                (:meth:`prefix_s`, included here). Give the n-gram source of "n-gram first" where that one drafted.
            num_drafted: Draft tokens; the target's pass has one row more.
            context: Positions before the block.
        """
        full_s = self.pass_s(num_drafted + 1, context)
        spec = _passes_of(spec)
        if not isinstance(spec, EarlyExitSpec) or num_drafted == 0:
            return full_s
        layer_share = self.layer_s(context) / self.pass_s(1, context)
        return full_s * (1 - spec.exit_layer * layer_share) + self.prefix_s(spec, context)

    def round_s(self, spec: AnySourceSpec | None, num_drafted: int, context: int) -> float:
        """Seconds of a whole round that drafts ``num_drafted`` tokens, one pass each."""
        drafting_s = num_drafted * self.draft_pass_s(spec, context)
        return drafting_s + self.verify_s(spec, num_drafted, context) + self.host_s

    def _quantized_s(self, spec: QuantizedSpec, context: int) -> float:
        pass_s, head_s = self.table.quantized_pass_s, self.head_s
        if spec.quantize_head:
            head_s = self.table.quantized_head_s if self.table.quantized_head_s is not None else head_s
        if pass_s is None:
            message = f"The cost of '{spec.describe()}' was not measured: measure costs with the quantised copy."
            raise PlanError(message)
        # Attending to a longer context costs the copy what it costs the model: the cache is the same.
        longer_s = self.pass_s(1, context) - self.pass_s(1, self.table.context_lengths[0])
        layers_s = max(pass_s - self.head_s + longer_s, 0.0)
        share = layers_s / (self.num_layers * self.layer_s(context)) if self.layer_s(context) else 0.0
        return head_s + max(layers_s - share * self._saved_s(spec.skip, context), 0.0)

    def _saved_s(self, skip: LayerSkipSet, context: int) -> float:
        whole = len(skip.attention & skip.mlp)
        attention_s = (len(skip.attention) - whole) * self.attention_s(context)
        mlp_s = (len(skip.mlp) - whole) * self.mlp_s(context)
        return whole * self.layer_s(context) + attention_s + mlp_s

    def _fit(self, context: int) -> float:
        """Noise may make the parts larger than the layer; they are then scaled to it."""
        parts_s = self._at(self.table.attention_s, context) + self.table.mlp_s
        return min(1.0, self.layer_s(context) / parts_s) if parts_s > 0 else 1.0

    def _at(self, values: Sequence[float], context: int) -> float:
        return interpolated(self.table.context_lengths, values, context)


def interpolated(xs: Sequence[int], ys: Sequence[float], x: float) -> float:
    """Piecewise linear through ``(xs, ys)``, ascending in xs.

    Below the first point it is constant; above the last it goes on with the slope from the first to the last
    point, which noise disturbs least, and never falls.
    """
    if x <= xs[0]:
        return ys[0]
    for (x0, y0), (x1, y1) in pairwise(zip(xs, ys, strict=True)):
        if x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    slope = (ys[-1] - ys[0]) / (xs[-1] - xs[0]) if len(xs) > 1 else 0.0
    return ys[-1] + max(slope, 0.0) * (x - xs[-1])


def _rows_s(measured: Sequence[float], rows: int) -> float:
    return interpolated(range(1, len(measured) + 1), measured, rows)


def _passes_of(spec: AnySourceSpec | None) -> AnySourceSpec | None:
    return spec.then if isinstance(spec, NgramFirstSpec) else spec
