"""Reads a prompt: in one pass, or in blocks of rows where the mask of one pass would outgrow the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from selfspec_runtime.cache import KVCache
    from selfspec_runtime.target import Target

MAX_PAIRS = 2**25
"""Most pairs of a row and a position that it may see, in one pass. Attention holds a mask of them, one for each query
head of a key head, and then in the model's dtype: half a gigabyte with four such heads. A prompt of 5,792 tokens is
one pass."""


def read_prompt(target: Target, token_ids: Tensor, cache: KVCache, *, start: int) -> Tensor:
    """Runs what the cache does not hold yet.

    Args:
        target: The model.
        token_ids: The whole text, ``[n]`` int64.
        cache: Holds the first ``start`` positions.
        start: Below ``n``.

    Returns:
        Logits that follow the last token, ``[1, vocab]``.
    """
    *before, last = row_blocks(start, len(token_ids))
    for first, end in before:
        target.advance(token_ids[first:end], cache, start=first, program=target.full)
    return target.logits(token_ids[last[0] :], cache, start=last[0], keep=1)


def row_blocks(start: int, end: int, *, max_pairs: int | None = None) -> Iterator[tuple[int, int]]:
    """Cuts positions ``start .. end - 1`` into blocks of equal length, but for the last.

    Args:
        start: First position.
        end: Behind the last one.
        max_pairs: Most rows times positions of one block; `MAX_PAIRS` by default.
    """
    rows = max((MAX_PAIRS if max_pairs is None else max_pairs) // end, 1)
    for first in range(start, end, rows):
        yield first, min(first + rows, end)
