"""Which predicted plans are worth timing: good ones that differ, of every family, for each step of extra memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfspec_calibrate.draft_families import family_of
from selfspec_calibrate.plan_parts import sources_in
from selfspec_calibrate.skip_ranking import positions_of
from selfspec_runtime.drafts.early_exit import EarlyExitSpec
from selfspec_runtime.drafts.first_of import NgramFirstSpec
from selfspec_runtime.drafts.ngram import NgramSpec
from selfspec_runtime.drafts.quantized import QuantizedSpec
from selfspec_runtime.drafts.skipped import LayerSkipSpec
from selfspec_runtime.drafts.suffix import SuffixSpec
from selfspec_runtime.memory import StepName, step_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from selfspec_calibrate.predicted_study import PredictedStudy
    from selfspec_calibrate.prediction import Prediction
    from selfspec_runtime.drafts.registry import AnySourceSpec
    from selfspec_runtime.drafts.source import SourceSpec
    from selfspec_runtime.layer_skip import LayerSkipSet
    from selfspec_runtime.plan import DraftPlan

#: Steps of extra memory, in ascending order.
STEPS: tuple[StepName, ...] = ("zero", "quantized")

#: Skip sets that differ in no more sub-layers are much the same.
NEAR_SKIPS = 2


@dataclass(frozen=True, kw_only=True)
class PlanMemory:
    """What plans hold beyond the model and its cache.

    Attributes:
        weight_bytes: The model's weights.
        exit_head_bytes: One linear exit head.
        quantized_bytes: The quantised copy of the layers.
        quantized_head_bytes: The quantised copy of the head.
        head_row_bytes: One token's row of the head, and one direction of a low-rank exit head's factor.
    """

    weight_bytes: int
    exit_head_bytes: int = 0
    quantized_bytes: int = 0
    quantized_head_bytes: int = 0
    head_row_bytes: int = 0

    def extra_bytes(self, plan: DraftPlan) -> int:
        """Bytes that a plan holds."""
        return sum(self._source_bytes(source) for source in sources_in(plan))

    def _source_bytes(self, source: SourceSpec) -> int:
        reduced: int | None = getattr(source, "vocab_size", None)
        held = 0 if reduced is None else reduced * self.head_row_bytes
        if isinstance(source, QuantizedSpec):
            head = self.quantized_head_bytes if source.quantize_head and reduced is None else 0
            return held + self.quantized_bytes + head
        if isinstance(source, EarlyExitSpec) and source.head == "linear":
            factors = None if source.rank is None else 2 * source.rank * self.head_row_bytes
            return held + (self.exit_head_bytes if factors is None else factors)
        return held

    def step(self, plan: DraftPlan) -> StepName:
        """The step of extra memory that a plan belongs to."""
        return step_of(extra_bytes=self.extra_bytes(plan), weight_bytes=self.weight_bytes)


def leaders(
    study: PredictedStudy, memory: PlanMemory, *, num_overall: int = 4, per_family: int = 1
) -> dict[StepName, tuple[Prediction, ...]]:
    """Picks plans to time.

    Args:
        study: What was predicted.
        memory: What plans hold.
        num_overall: Best plans per step, whatever their family.
        per_family: Plans of each family per step, at least, where there are so many that differ.

    Returns:
        For each step that has plans its leaders, best first; a plan that is near to a better one is passed over.
    """
    found: dict[StepName, list[Prediction]] = {step: [] for step in STEPS}
    for prediction in study.plans:
        found[memory.step(prediction.plan)].append(prediction)
    return {step: _picked(plans, num_overall, per_family) for step, plans in found.items() if plans}


def _picked(plans: list[Prediction], num_overall: int, per_family: int) -> tuple[Prediction, ...]:
    families = dict.fromkeys(_family(prediction) for prediction in plans)
    chosen = _different(plans, num_overall)
    for family in families:
        chosen += _different([prediction for prediction in plans if _family(prediction) == family], per_family)
    return tuple(sorted(dict.fromkeys(chosen), key=lambda prediction: prediction.speedup, reverse=True))


def _different(plans: Iterable[Prediction], count: int) -> list[Prediction]:
    """The best plans no two of which are near each other; plans come best first."""
    chosen: list[Prediction] = []
    for prediction in plans:
        if len(chosen) == count:
            break
        if not any(are_near(_source(prediction), _source(other)) for other in chosen):
            chosen.append(prediction)
    return chosen


def are_near(first: AnySourceSpec, second: AnySourceSpec) -> bool:
    """Whether two sources are so much alike that timing one tells about the other."""
    if isinstance(first, NgramFirstSpec) and isinstance(second, NgramFirstSpec):
        return are_near(first.then, second.then)  # which lookup is the better one is known from its exact replay
    if isinstance(first, NgramSpec) and isinstance(second, NgramSpec):
        return first.min_match == second.min_match
    if isinstance(first, SuffixSpec) and isinstance(second, SuffixSpec):
        return first.min_match == second.min_match and first.corpus == second.corpus
    if isinstance(first, EarlyExitSpec) and isinstance(second, EarlyExitSpec):
        return first.head == second.head and abs(first.exit_layer - second.exit_layer) <= 1
    if isinstance(first, LayerSkipSpec) and isinstance(second, LayerSkipSpec):
        return _skips_near(first.skip, second.skip)
    if isinstance(first, QuantizedSpec) and isinstance(second, QuantizedSpec):
        return first.quantize_head == second.quantize_head and _skips_near(first.skip, second.skip)
    return False


def _skips_near(first: LayerSkipSet, second: LayerSkipSet) -> bool:
    return len(positions_of(first) ^ positions_of(second)) <= NEAR_SKIPS


def _family(prediction: Prediction) -> str:
    family = family_of(prediction.plan)
    return _source(prediction).kind if family is None else family.name


def _source(prediction: Prediction) -> AnySourceSpec:
    assert prediction.plan.source is not None, "plain decoding is not searched"
    return prediction.plan.source
