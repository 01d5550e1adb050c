"""Which variants of the attention kernels are compiled ahead of time, and with what types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from selfspec_runtime.kernels.attention_layout import (
    ADDITIVE_MASK,
    BOOLEAN_MASK,
    NO_MASK,
    CachedRows,
    SplitParts,
    split_size,
    tile_width,
)

#: Width of the heads, dtype, whether with softcap or sinks, and the kind of the mask.
CHOICES = [
    (64, "bf16", False, BOOLEAN_MASK),
    (128, "bf16", False, BOOLEAN_MASK),
    (128, "bf16", False, ADDITIVE_MASK),
    (128, "bf16", False, NO_MASK),
    (256, "fp16", True, BOOLEAN_MASK),
    (128, "fp32", False, BOOLEAN_MASK),
]
GROUPS = 4
"""Query heads for each key head."""

_MASK_TYPES = {NO_MASK: "*fp32", BOOLEAN_MASK: "*i1", ADDITIVE_MASK: "*bf16"}
_MASK_NAMES = {NO_MASK: ", no mask", BOOLEAN_MASK: "", ADDITIVE_MASK: ", additive mask"}


@dataclass(frozen=True)
class AttentionVariant:
    """One variant of an attention kernel.

    Attributes:
        shown: What tells it apart.
        constants: The constants that the kernel takes.
        signature: The type of every argument.
        attributes: What is known of arguments: the cache's addresses and strides are multiples of 16.
    """

    shown: str
    constants: dict[str, Any]
    signature: dict[str, Any]
    attributes: dict[tuple[int, ...], list[list[Any]]]


def attention_variants(kernel: Any) -> list[AttentionVariant]:
    """Every variant of a kernel that is looked at; the merger does not see the mask."""
    masks = _MASK_TYPES if "MASK" in kernel.arg_names else (BOOLEAN_MASK,)
    return [_variant(kernel, *choice) for choice in CHOICES if choice[-1] in masks]


def _variant(kernel: Any, dim: int, dtype: str, has_extra: bool, mask: int) -> AttentionVariant:
    constants = {
        "GROUPS": GROUPS, "DIM": dim, "DIM_TILE": tile_width(dim), "VALUE_DIM": dim, "VALUE_TILE": tile_width(dim),
        "SPLIT": split_size(dim, dim, 4 if dtype == "fp32" else 2), "MASK": mask,
        "LOWEST": torch.finfo(torch.bfloat16).min, "HAS_SOFTCAP": has_extra, "HAS_SINKS": has_extra,
        "IS_WIDENED": False,
    }  # fmt: skip
    taken = {name: value for name, value in constants.items() if name in kernel.arg_names}
    types = {
        **dict.fromkeys(("query", "sinks", "merged"), f"*{dtype}"), "mask": _MASK_TYPES[mask],
        **dict.fromkeys(("keys", "values"), CachedRows(f"*{dtype}", "i32", "i32")),
        "parts": SplitParts("*fp32", "*fp32", "*fp32"), **dict.fromkeys(("scaling", "softcap"), "fp32"),
        **dict.fromkeys(taken, "constexpr"),
    }  # fmt: skip
    signature = {name: types.get(name, "i32") for name in kernel.arg_names}
    aligned: dict[tuple[int, ...], list[list[Any]]] = {
        (place, entry): [["tt.divisibility", 16]]
        for place, kind in enumerate(signature.values())
        if isinstance(kind, tuple)
        for entry in range(len(kind))
    }
    extra = "" if not has_extra else ", softcap" if "HAS_SOFTCAP" in taken else ", sinks"
    return AttentionVariant(f"{dtype}, heads of {dim}{extra}{_MASK_NAMES[mask]}", taken, signature, aligned)
