"""What kernels take together: named tuples, which Triton passes as one argument and kernels read by name.

On the host the entries are tensors and whole numbers, in a kernel pointers and scalars. Whatever changes from round
to round is a tensor, so that a recorded launch reads it anew.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class LogitRows(NamedTuple):
    """Rows of logits.

    Attributes:
        logits: ``[n, size]``, rows contiguous.
        stride: From row to row.
        size: Tokens.
    """

    logits: Any
    stride: Any
    size: Any


class LawfulRows(NamedTuple):
    """Rows of logits with their laws.

    Attributes:
        logits: ``[n, size]``, rows contiguous.
        stride: From row to row of the logits.
        size: Tokens.
        laws: int64 ``[n, law_width(size)]``, see `layout`.
        law_stride: From law to law.
    """

    logits: Any
    stride: Any
    size: Any
    laws: Any
    law_stride: Any


class Noise(NamedTuple):
    """Where random numbers are read from, see `selfspec_runtime.noise`.

    Attributes:
        seeds: int64, one for all rows or one for each.
        seed_stride: 0 or 1.
        position: int64 ``[1]``, of the first row's token; the rows' positions follow each other.
    """

    seeds: Any
    seed_stride: Any
    position: Any


class Block(NamedTuple):
    """Drafted tokens and what they are judged by.

    Attributes:
        draft_ids: int64 ``[g]``.
        num_drafted: ``g``.
        draft: The rows that they were drawn from; not read without laws.
        index_of: The draft's column of each token, int32, -1 for none; not read unless the draft is over a part of
            the vocabulary.
        target: ``g + 1`` rows.
    """

    draft_ids: Any
    num_drafted: Any
    draft: Any
    index_of: Any
    target: Any
