"""Four-bit copies of a model's own layers, by bitsandbytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from selfspec_runtime.errors import PlanError
from selfspec_runtime.fast_linear import dense_weight
from selfspec_runtime.four_bit import FourBitWeight
from selfspec_runtime.native.library import SUFFIXES, native_status
from selfspec_runtime.native.linear import FourBitLinear
from selfspec_runtime.stubs import shallow_twin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

BLOCK_SIZE = 64
#: bitsandbytes packs this many output rows together on a CPU, and fails on a remainder.
CPU_ROW_BLOCK = 32


@dataclass(frozen=True)
class QuantizedModules:
    """Modules whose linear weights are in NF4, everything else shared with the originals.

    Attributes:
        modules: One per original, in order.
        num_bytes: Memory that they hold beyond the model.
    """

    modules: tuple[nn.Module, ...]
    num_bytes: int


def quantized_modules(originals: Sequence[nn.Module], *, dtype: torch.dtype, device: torch.device) -> QuantizedModules:
    """Copies modules with their linear weights quantised to NF4.

    Norms, rotary tables and biases stay shared with the originals, so that a copy costs its four-bit weights
    and nothing else. So do the routers of mixtures: they are tiny, choose by small differences, and some families
    read their weights' dtype.

    Args:
        originals: Decoder layers, or a head.
        dtype: Dtype of the hidden states.
        device: Their device.

    Raises:
        PlanError: There are no plain linear layers (are the weights quantised already?).
    """
    modules = tuple(_quantized(module, _expert_counts(module)) for module in originals)
    own = {id(m) for module in originals for m in module.modules()}
    linears = [m for module in modules for m in module.modules() if _is_quantized(m) and id(m) not in own]
    if not linears:
        names = ", ".join(sorted({type(module).__name__ for module in originals}))
        message = (
            f"{names or 'The head'} has no plain linear layers to copy in NF4: are the weights quantised already, or "
            f"are their widths no multiples of {BLOCK_SIZE}? Use another draft, or load the model unquantised."
        )
        raise PlanError(message)
    _pack(linears, dtype, device)
    return QuantizedModules(modules, sum(_held_bytes(m) for m in linears))


def _expert_counts(layer: nn.Module) -> frozenset[int]:
    """Every number of experts that a layer's modules name, and 1: a linear layer with so many outputs is a router."""
    named = {
        value
        for module in layer.modules()
        for name, value in vars(module).items()
        if "expert" in name and type(value) is int
    }
    listed = (each for each in layer.modules() if isinstance(each, nn.ModuleList))
    return frozenset(named | {len(each) for each in listed} | {1})


def _quantized(module: nn.Module, expert_counts: frozenset[int]) -> nn.Module:
    weight = _linear_weight(module)
    if weight is not None and weight.shape[0] not in expert_counts:
        return _quantized_linear(module, weight)
    return _quantized_layer(module, expert_counts) if module._modules else module


def _linear_weight(module: Any) -> Tensor | None:
    """The ``[out, in]`` weight of a linear layer that can be copied, else None."""
    weight = dense_weight(module)
    if type(module) is Conv1D:  # GPT-2's linear layer, stored transposed
        weight = module.weight.data.T.contiguous()
    if weight is None or weight.shape[1] % BLOCK_SIZE:
        return None
    rows_fit = weight.shape[0] % CPU_ROW_BLOCK == 0 or weight.device.type != "cpu" or _runs_natively(weight)
    return weight if rows_fit else None


def _runs_natively(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype in SUFFIXES and native_status().kernels is not None


def _quantized_layer(layer: nn.Module, expert_counts: frozenset[int]) -> nn.Module:
    twin = shallow_twin(layer)
    for name, child in layer.named_children():
        twin._modules[name] = _quantized(child, expert_counts)
    return twin


def _quantized_linear(linear: Any, weight: Tensor) -> nn.Module:
    if _runs_natively(weight):
        return FourBitWeight.quantized(weight).linear(linear.bias, weight.dtype)
    return _bitsandbytes_linear(linear, weight)


def _bitsandbytes_linear(linear: nn.Module, weight: Tensor) -> nn.Module:
    import bitsandbytes as bnb  # deferred: its import takes a second and may look for accelerators

    bias: Any = linear.bias
    copied: nn.Module = bnb.nn.Linear4bit(
        weight.shape[1],
        weight.shape[0],
        bias=bias is not None,
        compute_dtype=weight.dtype,
        compress_statistics=False,
        quant_type="nf4",
        device="meta",
    )
    copied.weight = bnb.nn.Params4bit(
        weight.clone(), requires_grad=False, quant_type="nf4", blocksize=BLOCK_SIZE, compress_statistics=False
    ).to(weight.device)
    # bitsandbytes casts a bias of another dtype in place, and this one is the model's own.
    if bias is not None and (bias.dtype != weight.dtype or not isinstance(bias, nn.Parameter)):
        bias = nn.Parameter(bias.detach().to(weight.dtype), requires_grad=False)
    copied.bias = bias
    return copied.eval()


def _is_quantized(module: nn.Module) -> bool:
    return isinstance(module, FourBitLinear) or type(module).__name__ == "Linear4bit"


def _pack(linears: list[nn.Module], dtype: torch.dtype, device: torch.device) -> None:
    """Runs each linear once: bitsandbytes repacks weights at the first call, which must not be timed."""
    with torch.no_grad():
        for linear in linears:
            width: Any = linear.in_features
            linear(torch.zeros(1, width, dtype=dtype, device=device))


def _held_bytes(module: nn.Module) -> int:
    if isinstance(module, FourBitLinear):
        return module.packed_bytes
    weight: Any = module.weight
    state = getattr(weight, "quant_state", None)
    scales = getattr(state, "absmax", None)
    packed = weight.numel() * weight.element_size()
    return int(packed + (scales.numel() * scales.element_size() if scales is not None else 0))
