"""The counter-based noise of :mod:`selfspec_runtime.noise` with its seed and position on the device.

A recorded step is replayed for every seed and at every position, so neither may be a number in it. The counters,
and so the numbers, are the same bit for bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

from selfspec_runtime.noise import gumbel_from_words, philox, uniform_from_words

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec_runtime.noise import Stream

_UNIFORM, _GUMBEL = 0, 1


def device_uniforms(key: Tensor, positions: Tensor, stream: Stream, *, salt: Tensor | None = None) -> Tensor:
    """Uniform numbers in (0, 1), one per position.

    Args:
        key: ``[2]`` int64, the low and the high 32 bits of the seed.
        positions: ``[n]`` int64.
        stream: What the numbers are for.
        salt: ``[1]`` int64, or None for 0.

    Returns:
        float64 ``[n]``, bit-equal to :func:`selfspec_runtime.noise.uniforms`.
    """
    zero = torch.zeros_like(positions)
    salted = zero if salt is None else zero + salt
    low, high, _, _ = _philox((zero, positions, salted, zero + (2 * stream + _UNIFORM)), key)
    return uniform_from_words(low, high)


def device_gumbel(key: Tensor, positions: Tensor, stream: Stream, size: int) -> Tensor:
    """Standard Gumbel noise for the tokens ``0 .. size - 1`` at each position.

    Args:
        key: ``[2]`` int64.
        positions: ``[n]`` int64.
        stream: What the noise is for.
        size: Number of tokens.

    Returns:
        float32 ``[n, size]``, rows bit-equal to :func:`selfspec_runtime.noise.gumbel`.
    """
    blocks = torch.arange((size + 3) // 4, device=positions.device)[None]
    zero = torch.zeros_like(blocks)
    words = _philox((blocks, positions[:, None], zero, zero + (2 * stream + _GUMBEL)), key)
    return gumbel_from_words(torch.stack(words, dim=-1).flatten(start_dim=1)[:, :size])


def _philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    # Its arithmetic is the same for a key in tensors, which the signature does not say.
    return philox(counter, cast("tuple[int, int]", (key[:1], key[1:])))
