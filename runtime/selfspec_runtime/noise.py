"""Counter-based random numbers: what is drawn depends on seed, position and stream, never on call order.

The generator is Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), the
one behind Triton's ``tl.philox``, so a kernel can draw the same integers. Layout of a call:

    key      (seed bits 0..31, seed bits 32..63)
    counter  (block, position, salt, 2 * stream + kind)

``block`` is ``token_id // 4`` for Gumbel noise, one of the four output words per token, and 0 for uniforms;
``kind`` is 0 for uniforms and 1 for Gumbel noise. So no two streams, positions, salts or kinds share a
counter.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_NUM_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_UNIFORM, _GUMBEL = 0, 1

Word = TypeVar("Word", int, Tensor)


class Stream(IntEnum):
    """What a number is drawn for; numbers of two streams are independent.

    DRAFT: the token that a draft proposes. ACCEPT: whether it is accepted. RESIDUAL: the correction, the
    bonus, and every token of plain decoding in rejection mode. SHARED: the Gumbel noise that draft and target
    have in common in match mode.
    """

    DRAFT = 0
    ACCEPT = 1
    RESIDUAL = 2
    SHARED = 3


def philox(counter: tuple[Word, Word, Word, Word], key: tuple[int, int]) -> tuple[Word, Word, Word, Word]:
    """Return the four output words of Philox 4x32-10.

    Args:
        counter: Four words in 0..2**32 - 1, all Python integers or all int64 tensors that broadcast.
        key: Two words in 0..2**32 - 1.

    Returns:
        Four words in 0..2**32 - 1, of the type, shape and device of the counter.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_NUM_ROUNDS):
        # An int64 product wraps, which leaves its low 64 bits right: the mask then drops the copied sign.
        even, odd = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = ((odd >> 32) & _MASK) ^ c1 ^ k0, odd & _MASK
        c2, c3 = ((even >> 32) & _MASK) ^ c3 ^ k1, even & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def uniform_scalar(seed: int, position: int, stream: Stream, *, salt: int = 0) -> float:
    """Return one uniform number in the open interval (0, 1), computed without tensors (a few microseconds).

    Args:
        seed: Any integer; 64 bits of it are used.
        position: Absolute index in the sequence of the token that is decided, below 2**32.
        stream: What the number is for.
        salt: Tells apart several numbers for one position and stream. A draft passes the first position of
            its round, because a position that is drafted again after a rejection must get fresh noise as soon
            as anything (a controller, a draft that learns) has looked at the tokens that were thrown away.

    Returns:
        A number with 52 random bits, bit-equal to `uniforms`.
    """
    counter = (0, position & _MASK, salt & _MASK, 2 * stream + _UNIFORM)
    low, high, _, _ = philox(counter, _key(seed))
    return _odd_mantissa(low, high) * 2.0**-53


def uniforms(
    seed: int, positions: Tensor, stream: Stream, *, device: torch.device | str = "cpu", salt: int = 0
) -> Tensor:
    """Return one uniform number in the open interval (0, 1) per position.

    Args:
        seed: Any integer; 64 bits of it are used.
        positions: int64 ``[n]``, absolute positions below 2**32.
        stream: What the numbers are for.
        device: Where they are computed and returned.
        salt: As in `uniform_scalar`.

    Returns:
        float64 ``[n]``.
    """
    rows = positions.to(device=device, dtype=torch.int64) & _MASK
    zero = torch.zeros_like(rows)
    counter = (zero, rows, zero + (salt & _MASK), zero + (2 * stream + _UNIFORM))
    low, high, _, _ = philox(counter, _key(seed))
    return uniform_from_words(low, high)


def gumbel(
    seed: int,
    position: int,
    stream: Stream,
    size: int,
    *,
    device: torch.device | str = "cpu",
    salt: int = 0,
) -> Tensor:
    """Return standard Gumbel noise for the tokens ``0..size - 1`` at one position.

    Args:
        seed: Any integer; 64 bits of it are used.
        position: Absolute index in the sequence of the token that is decided, below 2**32.
        stream: What the noise is for.
        size: Number of tokens; a longer row starts with the same numbers as a shorter one.
        device: Where it is computed and returned.
        salt: As in `uniform_scalar`.

    Returns:
        float32 ``[size]``, finite, within -3.2 and 22.9 (32 random bits per token).
    """
    blocks = torch.arange((size + 3) // 4, device=device)
    words = _gumbel_words(blocks, seed, position=position, stream=stream, salt=salt)
    return gumbel_from_words(words.flatten()[:size])


def gumbel_at(seed: int, position: int, stream: Stream, token_ids: Tensor, *, salt: int = 0) -> Tensor:
    """Return the entries of `gumbel` at some tokens, without computing the others.

    Args:
        seed: Any integer; 64 bits of it are used.
        position: Absolute index in the sequence of the token that is decided, below 2**32.
        stream: What the noise is for.
        token_ids: int64 ``[n]``, not negative; the result is on their device.
        salt: As in `uniform_scalar`.

    Returns:
        float32 ``[n]``, bit-equal to ``gumbel(...)[token_ids]``.
    """
    words = _gumbel_words(token_ids >> 2, seed, position=position, stream=stream, salt=salt)
    return gumbel_from_words(words.gather(1, (token_ids & 3)[:, None])[:, 0])


def uniform_from_words(low: Tensor, high: Tensor) -> Tensor:
    """Return uniform numbers from two output words each.

    Args:
        low: int64 of any shape, 0..2**32 - 1.
        high: Likewise; the upper 12 bits are not used.

    Returns:
        float64 of the same shape, odd multiples of 2**-53: 2**-53 to 1 - 2**-53.
    """
    return _odd_mantissa(low, high).double() * 2.0**-53


def gumbel_from_words(words: Tensor) -> Tensor:
    """Return standard Gumbel numbers, float32, for int64 words in 0..2**32 - 1 of any shape."""
    # In float64, because the large values come from numbers so near to 1 that float32 rounds them to 1.
    open_interval = words.double().add_(0.5).mul_(2.0**-32)
    return open_interval.log_().neg_().log_().neg_().float()


def _odd_mantissa(low: Word, high: Word) -> Word:
    # Odd, so that neither 0 nor 1 can come out, and below 2**53, so that float64 holds it exactly.
    return ((high & 0xFFFFF) << 33) + 2 * low + 1


def _gumbel_words(blocks: Tensor, seed: int, *, position: int, stream: Stream, salt: int) -> Tensor:
    zero = torch.zeros((), dtype=torch.int64, device=blocks.device)
    counter = (blocks, zero + (position & _MASK), zero + (salt & _MASK), zero + (2 * stream + _GUMBEL))
    return torch.stack(philox(counter, _key(seed)), dim=-1)


def _key(seed: int) -> tuple[int, int]:
    return seed & _MASK, (seed >> 32) & _MASK
