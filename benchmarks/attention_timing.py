"""What attention of few rows costs by the kernels and by torch, recorded as a step records it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from selfspec_runtime.executors.recorder import CudaRecorder, NoRecorder
from selfspec_runtime.executors.recordings import extent_for
from selfspec_runtime.folded_attention import folded_attention
from selfspec_runtime.kernels import attention_operator
from selfspec_runtime.masks import causal_mask

if TYPE_CHECKING:
    from collections.abc import Callable

HEADER = "| attention | rows | kernels, us | torch, us | kernels, GB/s |\n|---|---:|---:|---:|---:|"
CALLS = 16
"""Layers in one recording, so that what a replay itself costs does not count."""


@dataclass(frozen=True)
class Attention:
    """Shape of one layer's attention.

    Attributes:
        heads: Query heads.
        kv_heads: Key heads.
        dim: Their width.
    """

    heads: int = 32
    kv_heads: int = 8
    dim: int = 128


def attention_lines(
    seconds_of: Callable[..., float], device: str, *, lengths: tuple[int, ...], shape: Attention
) -> list[str]:
    """One line in Markdown for each number of rows and each length.

    Args:
        seconds_of: Seconds of one call of a function on a device.
        device: Where to run.
        lengths: Live positions.
        shape: Of the layer.
    """
    return [_line(seconds_of, device, rows, length, shape) for length in lengths for rows in (1, 5, 16)]


def _line(seconds_of: Callable[..., float], device: str, rows: int, length: int, shape: Attention) -> str:
    extent = extent_for(length, 2 * length)
    dtype = torch.bfloat16
    query = torch.randn(1, shape.heads, rows, shape.dim, device=device, dtype=dtype)
    caches = [torch.randn(2, 1, shape.kv_heads, extent, shape.dim, device=device, dtype=dtype) for _ in range(CALLS)]
    positions = torch.arange(length - rows, length, device=device)
    mask = causal_mask(positions, torch.arange(extent, device=device), None)
    scaling = shape.dim**-0.5

    def by_kernels() -> None:
        for key, value in caches:
            attention_operator.decode_attention(query, key, value, mask, None, scaling, None)

    def by_torch() -> None:
        for key, value in caches:
            folded_attention(query, key, value, mask, scaling=scaling, softcap=None, sinks=None)

    kernels, reference = (seconds_of(_recorded(run, device), device) / CALLS for run in (by_kernels, by_torch))
    gigabytes = 2 * shape.kv_heads * length * shape.dim * query.element_size() / 1e9
    numbers = f"{1e6 * kernels:.1f} | {1e6 * reference:.1f} | {gigabytes / kernels:.0f}"
    return f"| {shape.heads} heads, {length} of {extent} positions | {rows} | {numbers} |"


def _recorded(run: Callable[[], None], device: str) -> Callable[[], Any]:
    recorder = CudaRecorder(torch.device(device, 0)) if device == "cuda" else NoRecorder()
    with torch.no_grad():
        recorder.warm_up(run)
        return recorder.record(run).replay
