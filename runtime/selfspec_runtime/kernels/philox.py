"""The random numbers of `selfspec_runtime.noise`, bit for bit, in kernels."""

from __future__ import annotations

import triton.language as tl

from selfspec_runtime.kernels.jit import kernel


@kernel
def uniform_at(seed: tl.tensor, position: tl.tensor, salt: tl.tensor, STREAM: tl.constexpr) -> tl.tensor:
    """Uniform numbers in the open interval (0, 1), float64: `selfspec_runtime.noise.uniforms`.

    Args:
        seed: int64.
        position: int64; like the salt a scalar or a tensor.
        salt: int64.
        STREAM: What the numbers are for.
    """
    rows = position.to(tl.uint32)
    none = rows * 0
    low, high, _, _ = tl.philox(seed, none, rows, none + salt.to(tl.uint32), none + 2 * STREAM)
    mantissa = ((high & 0xFFFFF).to(tl.int64) << 33) + 2 * low.to(tl.int64) + 1
    return mantissa.to(tl.float64) * (1.0 / (1 << 53))


@kernel
def gumbel_at(seed: tl.tensor, position: tl.tensor, token_ids: tl.tensor, STREAM: tl.constexpr) -> tl.tensor:
    """Standard Gumbel noise of tokens at one position, float32: `selfspec_runtime.noise.gumbel_at`."""
    blocks = (token_ids >> 2).to(tl.uint32)
    none = blocks * 0
    w0, w1, w2, w3 = tl.philox(seed, blocks, none + position.to(tl.uint32), none, none + (2 * STREAM + 1))
    word = token_ids & 3
    words = tl.where(word < 2, tl.where(word == 0, w0, w1), tl.where(word == 2, w2, w3))
    # In float64, because the large values come from numbers so near to 1 that float32 rounds them to 1.
    open_interval = (words.to(tl.float64) + 0.5) * (1.0 / (1 << 32))
    return (-tl.log(-tl.log(open_interval))).to(tl.float32)
