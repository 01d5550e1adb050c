"""Rebuilds a model that selfspec loaded itself for fast decoding on a CPU; a user's own module is never changed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from selfspec_runtime.architecture import find_parts
from selfspec_runtime.fast_linear import FAST, can_be_fast, fast_linear
from selfspec_runtime.heap import return_freed_memory
from selfspec_runtime.lean_layer import LeanLayer, can_be_lean
from selfspec_runtime.native.halved import HalvedLinear
from selfspec_runtime.native.linear import is_native
from selfspec_runtime.weight_arena import WeightArena, advise_huge_pages

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel


def pack_model(model: PreTrainedModel) -> int:
    """Replaces decoder layers by lean ones where the family allows it, else their linear layers by fast ones.

    Each original is freed before the next is packed, so that loading never holds two copies of the weights.

    Returns:
        Number of decoder layers that were repacked.
    """
    # No name may hold an original beside the model's own list: it would live on beside what it is packed into.
    parts, arena = replace(find_parts(model), own_layers=()), WeightArena()
    for index in range(len(parts.layers)):
        parts.layers[index] = _packed(parts.layers[index], arena)
        return_freed_memory()
    if parts.head_path is not None and parts.head is not None and _may_be_fast(model, parts.head):
        parent, _, name = parts.head_path.rpartition(".")
        head = fast_linear(parts.head)
        setattr(model.get_submodule(parent), name, head)
        advise_huge_pages(
            head.get_buffer("weight") if isinstance(head, HalvedLinear) else parts.head.get_parameter("weight")
        )
        return_freed_memory()
    return sum(any(isinstance(m, FAST) for m in layer.modules()) for layer in parts.layers)


def _packed(layer: nn.Module, arena: WeightArena) -> nn.Module:
    if can_be_lean(layer):
        return LeanLayer(layer, arena).eval().requires_grad_(False)
    _pack_linears(layer, arena)
    return layer


def _pack_linears(layer: nn.Module, arena: WeightArena) -> None:
    for parent in list(layer.modules()):
        for name, child in list(parent.named_children()):
            if can_be_fast(child):
                setattr(parent, name, fast_linear(child, arena))


def _may_be_fast(model: PreTrainedModel, head: nn.Module) -> bool:
    """A tied head shares its matrix with the embeddings, which need it as it is: oneDNN would hold it twice."""
    is_tied = getattr(head, "weight", None) is model.get_input_embeddings().weight
    return is_native(head) or (can_be_fast(head) and not is_tied)
