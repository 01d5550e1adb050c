"""What a family of drafts is asked about when its plans are to be made."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_args

from pydantic import ValidationError

from selfspec_runtime.controllers.registry import AnyControllerSpec
from selfspec_runtime.drafts.registry import AnySourceSpec
from selfspec_runtime.errors import PlanError
from selfspec_runtime.plan import DraftPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from selfspec_calibrate.prediction import Prediction
    from selfspec_calibrate.search_space import SearchSpace


def _no_costs(plan: DraftPlan) -> None:
    del plan


def kinds_of(registry: Any) -> frozenset[str]:
    """Kinds that a registry's union holds."""
    union = get_args(registry)[0]
    return frozenset(member.model_fields["kind"].default for member in get_args(union) or (union,))


SOURCE_KINDS = kinds_of(AnySourceSpec)
CONTROLLER_KINDS = kinds_of(AnyControllerSpec)


@dataclass(frozen=True, kw_only=True)
class FamilyWorld:
    """A model, what was predicted for it, and what it has.

    Attributes:
        space: The plans that are predicted.
        predictions: The predicted study's, best first.
        costs_of: Gives a plan's round costs in plain steps, as learning controllers want them; None if unknown.
        num_experts: Experts that the model's routers choose per token, or None for a model without routers.
        vocab_size: Tokens of the vocabulary.
        array_names: Fitted arrays that plans may name.
        can_quantize: Whether a quantised copy can be made on this device.
    """

    space: SearchSpace
    predictions: Sequence[Prediction]
    costs_of: Callable[[DraftPlan], Mapping[str, Any] | None] = _no_costs
    num_experts: int | None = None
    vocab_size: int = 0
    array_names: frozenset[str] = frozenset()
    can_quantize: bool = False

    def best(self, *kinds: str) -> Prediction | None:
        """The fastest predicted plan of some kinds of source, or of all."""
        found = (each for each in self.predictions if not kinds or _kind(each.plan) in kinds)
        return next(found, None)

    @cached_property
    def best_passes(self) -> DraftPlan | None:
        """The fastest predicted plan that drafts by passes alone, at the zero step of memory where there is one."""
        best = self.best("layer_skip", "early_exit") or self.best("quantized")
        return None if best is None else best.plan

    @property
    def best_layer_speedup(self) -> float | None:
        """What drafts by some of the model's own layers are predicted to reach; None if none was predicted."""
        best = self.best("layer_skip", "early_exit")
        return None if best is None else best.speedup

    def plan(self, source: Mapping[str, Any], controller: Mapping[str, Any] | None = None) -> DraftPlan | None:
        """A plan from its data; None where this version, or these numbers, do not allow it."""
        given: dict[str, Any] = {"source": dict(source)}
        if controller is not None:
            given["controller"] = dict(controller)
        try:
            plan = DraftPlan.model_validate(given)
            plan.validate_for(self.space.num_layers)
        except (ValidationError, ValueError, PlanError):
            return None
        return plan


def _kind(plan: DraftPlan) -> str:
    return "none" if plan.source is None else plan.source.kind
