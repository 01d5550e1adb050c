"""Repacks a model that selfspec loaded itself for fast decoding on a CPU; a user's own module is never changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from selfspec_runtime.architecture import find_parts
from selfspec_runtime.lean_layer import LeanLayer, can_be_lean
from selfspec_runtime.packed_linear import PackedLinear, is_packable

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def pack_model(model: PreTrainedModel) -> int:
    """Replaces decoder layers by lean ones where the family allows it, else their linear layers by packed ones.

    Each original is freed before the next is packed, so that loading never holds two copies of the weights.

    Returns:
        Number of decoder layers that were repacked.
    """
    parts = find_parts(model)
    for index, layer in enumerate(parts.layers):
        if can_be_lean(layer):
            parts.layers[index] = LeanLayer(layer).eval().requires_grad_(False)
        else:
            _pack_linears(layer)
    if parts.head_path is not None and parts.head is not None and not _is_tied(model, parts.head):
        _replace(model, parts.head_path, parts.head)
    return sum(any(isinstance(m, PackedLinear) for m in layer.modules()) for layer in parts.layers)


def _pack_linears(layer: nn.Module) -> None:
    for parent in list(layer.modules()):
        for name, child in list(parent.named_children()):
            if is_packable(child) and isinstance(child, nn.Linear):
                setattr(parent, name, PackedLinear(child.weight, child.bias))


def _is_tied(model: PreTrainedModel, head: nn.Module) -> bool:
    """A tied head shares its matrix with the embeddings, which need it unpacked: packing would hold it twice."""
    return getattr(head, "weight", None) is model.get_input_embeddings().weight


def _replace(model: nn.Module, path: str, head: nn.Module) -> None:
    if is_packable(head) and isinstance(head, nn.Linear):
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, PackedLinear(head.weight, head.bias))
