"""Hashes a model's weights from a fixed sample of their values, in a fraction of a second."""

from __future__ import annotations

import copy
import hashlib
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor, nn

SAMPLES_PER_TENSOR = 64


def sha256_of_weights(model: nn.Module) -> str:
    """Hash of names, shapes and sampled values of all parameters.

    Values are rounded to bfloat16 first, so that one checkpoint gives one hash in float32 and bfloat16. Tied
    parameters count once. Integer parameters (quantised weights) are sampled as stored.

    Args:
        model: A model whose weights are where ``from_pretrained`` put them: not fused.
    """
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters(), key=lambda item: item[0]):
        shape = _original_shape(parameter)
        digest.update(f"{name}:{','.join(map(str, shape))};".encode())
        for part in _parts(parameter):
            digest.update(_sampled_bytes(part))
    return digest.hexdigest()


def _original_shape(parameter: Tensor) -> tuple[int, ...]:
    state = getattr(parameter, "quant_state", None)
    return tuple(parameter.shape if state is None else state.shape)


def _parts(parameter: Tensor) -> tuple[Tensor, ...]:
    """The values of a weight; of one that bitsandbytes quantised, its codes and its block scales.

    On a CPU the first pass packs the codes for its kernel, which must not change the hash. Scales that are
    quantised themselves do not survive packing exactly and are left out.
    """
    state = getattr(parameter, "quant_state", None)
    if state is None:
        return (parameter.data,)
    nested = state.nested or getattr(state, "original_nested", False)
    if not getattr(state, "packing_format_for_cpu", False):
        return (parameter.data,) if nested else (parameter.data, state.absmax)
    from bitsandbytes.functional import _convert_weight_packed_for_cpu_inverse

    codes, _ = _convert_weight_packed_for_cpu_inverse(parameter.data, copy.copy(state))
    return (codes,) if nested else (codes, state.absmax.T.reshape(-1))


def _sampled_bytes(tensor: Tensor) -> bytes:
    if tensor.numel() == 0:
        return b""
    spread = torch.linspace(0, tensor.numel() - 1, SAMPLES_PER_TENSOR, dtype=torch.float64)
    positions = torch.unravel_index(spread.round().long().to(tensor.device), tensor.shape)
    values = tensor[positions] if tensor.dim() else tensor.reshape(1)
    if values.is_floating_point():
        values = values.to(torch.bfloat16).view(torch.int16)
    return values.cpu().contiguous().view(torch.uint8).numpy().tobytes()
