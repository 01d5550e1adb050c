"""What prompt lookup would draft at every row of a trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from selfspec_runtime.drafts.ngram import NgramIndex

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from selfspec_calibrate.trace import Trace

#: The longest draft that a plan can ask for.
LONGEST = 64


@dataclass(frozen=True)
class NgramRows:
    """Lookups of one trace under one pair of bounds; a shorter draft is a beginning of the longest one.

    Attributes:
        available: int64 ``[T]``, for each row the number of tokens that the lookup can offer.
        matched: int64 ``[T]``, how many of them, from the first on, are the tokens that follow in the trace.
    """

    available: NDArray[np.int64]
    matched: NDArray[np.int64]


def ngram_rows(trace: Trace, min_match: int, max_match: int) -> NgramRows:
    """Looks every row of a trace up, with the index that decoding uses.

    Args:
        trace: Tokens of a prompt and of plain decoding.
        min_match: Shortest n-gram to look up.
        max_match: Longest n-gram to look up.
    """
    index = NgramIndex(min_match, max_match)
    output = list(trace.output_ids)
    ids = list(trace.prompt_ids)
    available, matched = [], []
    for row in range(len(output) - 1):
        ids.append(output[row])
        index.extend_to(ids)
        drafted = index.continuation(LONGEST)
        available.append(len(drafted))
        matched.append(common_length(drafted, output[row + 1 : row + 1 + LONGEST]))
    return NgramRows(np.array(available, dtype=np.int64), np.array(matched, dtype=np.int64))


def common_length(first: list[int], second: list[int]) -> int:
    """Length of the longest common beginning."""
    length = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        length += 1
    return length
