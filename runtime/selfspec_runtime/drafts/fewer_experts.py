"""Fewer routed experts in the draft (self-speculation for mixtures of experts, Zheng et al., WWW 2026).

The draft's router takes its best ``num_experts`` instead of the model's number, with whatever renormalisation is the
model's own; shared experts stay. Verification always runs the full router, so that nothing is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import torch
from pydantic import Field

from selfspec_runtime.drafts.passes import PassSource
from selfspec_runtime.drafts.source import SourceSpec
from selfspec_runtime.errors import PlanError
from selfspec_runtime.layer_skip import LayerSkipSet
from selfspec_runtime.stubs import shallow_twin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from selfspec_runtime.target import Target

NumExperts = Annotated[int, Field(ge=1, le=1024, strict=True)]


class FewerExpertsSpec(SourceSpec):
    """Plan entry for fewer routed experts.

    Attributes:
        num_experts: Experts that each token is routed to in the draft, at all layers or at each; layers without
            routed experts are passed over.
        skip: Sub-layers left out on top.
    """

    kind: Literal["fewer_experts"] = "fewer_experts"
    num_experts: NumExperts | tuple[NumExperts, ...]
    skip: LayerSkipSet = LayerSkipSet()

    def build(self, target: Target, arrays: Mapping[str, Tensor]) -> PassSource:
        """Makes the source.

        Raises:
            PlanError: The model has no routed experts, or routes to no more than these.
        """
        del arrays
        self.validate_for(target.num_layers)
        layers = fewer_expert_layers(target, self.counts(target.num_layers))
        return PassSource(target, target.programs.without(self.skip, layers=layers), origin="fewer_experts")

    def counts(self, num_layers: int) -> tuple[int, ...]:
        """Experts for each layer."""
        return (self.num_experts,) * num_layers if isinstance(self.num_experts, int) else self.num_experts

    def validate_for(self, num_layers: int) -> None:
        """Checks the skip set's indices and the number of entries."""
        self.skip.validate_for(num_layers)
        given = len(self.counts(num_layers))
        if given != num_layers:
            message = (
                f"num_experts has {given} entries, but the model has {num_layers} layers. Give one number for all, or "
                f"{num_layers}."
            )
            raise PlanError(message)

    def describe(self) -> str:
        """For example ``2 experts, skip A4``."""
        counts = (self.num_experts,) if isinstance(self.num_experts, int) else self.num_experts
        low, high = min(counts), max(counts)
        number = str(low) if low == high else f"{low} to {high}"
        skip = f", {self.skip.describe()}" if len(self.skip) else ""
        return f"{number} expert{'s' if high > 1 else ''}{skip}"


def fewer_expert_layers(target: Target, counts: tuple[int, ...]) -> tuple[nn.Module, ...]:
    """Twins of the layers whose routers choose fewer experts; weights are shared, and the model's own stay as they are.

    Args:
        target: The model.
        counts: Experts for each layer.

    Raises:
        PlanError: The model has no routed experts, or routes to no more than these.
    """
    layers = tuple(target.full.modules)
    routed = [routed_experts(target, layer) for layer in layers]
    if not any(routed):
        message = (
            f"{type(target.model).__name__} has no routed experts to leave out: the model has plain MLPs, or a router "
            "that selfspec does not know. Choose another kind of draft."
        )
        raise PlanError(message)
    if any(count > have for count, have in zip(counts, routed, strict=True) if have) or all(
        count >= have for count, have in zip(counts, routed, strict=True)
    ):
        message = (
            f"A draft with {_listed(counts)} experts is not possible: the model has {max(routed)} for each token. "
            f"Ask for at most so many at every layer, and for fewer at one layer at least."
        )
        raise PlanError(message)
    return tuple(
        _reduced(target, layer, count) if have > count else layer
        for layer, count, have in zip(layers, counts, routed, strict=True)
    )


def routed_experts(target: Target, layer: nn.Module) -> int:
    """Experts that the layer routes each token to; 0 if it has none or a router that is not known."""
    router = _router_of(_mlp_of(target, layer))
    return 0 if router is None else int(router[1].top_k)  # type: ignore[arg-type]


def _mlp_of(target: Target, layer: nn.Module) -> nn.Module | None:
    name = target.parts.mlp_name
    return None if name is None else layer._modules.get(name)


def _router_of(block: nn.Module | None) -> tuple[str, nn.Module] | None:
    """Name and module of the child that chooses experts: it has their number, and indices of so many come out."""
    if block is None or "experts" not in block._modules:
        return None
    for name, child in block._modules.items():
        if child is not None and isinstance(getattr(child, "top_k", None), int) and _follows(child):
            return name, child
    return None


def _follows(router: nn.Module) -> bool:
    """Whether a twin with another number routes to that number: some routers have theirs built in."""
    weight = next(router.parameters(), None)
    if weight is None:
        return False
    twin = _with_top_k(router, 1)
    with torch.no_grad():
        out = twin(weight.new_zeros(1, weight.shape[-1]))
    indices = [t for t in out if isinstance(t, torch.Tensor) and not t.is_floating_point()]
    return any(chosen.shape[-1] == 1 for chosen in indices)


def _reduced(target: Target, layer: nn.Module, count: int) -> nn.Module:
    block = _mlp_of(target, layer)
    found = _router_of(block)
    assert block is not None
    assert found is not None
    name, router = found
    slim, twin = shallow_twin(block), shallow_twin(layer)
    slim._modules[name] = _with_top_k(router, count)
    twin._modules[str(target.parts.mlp_name)] = slim
    return twin


def _with_top_k(router: nn.Module, count: int) -> nn.Module:
    twin = shallow_twin(router)
    twin.__dict__["top_k"] = count
    return twin


def _listed(counts: tuple[int, ...]) -> str:
    return str(counts[0]) if len(set(counts)) == 1 else ", ".join(map(str, counts))
