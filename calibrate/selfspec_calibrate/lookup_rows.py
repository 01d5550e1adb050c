"""What a lookup would draft at every row of a trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from selfspec_runtime.drafts.ngram import NgramIndex
from selfspec_runtime.drafts.suffix import SuffixLookup
from selfspec_runtime.sequence import common_prefix

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray
    from torch import Tensor

    from selfspec_calibrate.trace import Trace
    from selfspec_runtime.drafts.suffix import SuffixSpec

#: The longest draft that a plan can ask for.
LONGEST = 64


@dataclass(frozen=True)
class LookupRows:
    """Lookups of one trace under one set of bounds; a shorter draft is a beginning of the longest one.

    Attributes:
        available: int64 ``[T]``, for each row the number of tokens that the lookup can offer.
        matched: int64 ``[T]``, how many of them, from the first on, are the tokens that follow in the trace.
    """

    available: NDArray[np.int64]
    matched: NDArray[np.int64]


class Lookup(Protocol):
    """What decoding looks continuations up with."""

    def extend_to(self, ids: list[int]) -> None:
        """Takes the text in."""

    def continuation(self, max_tokens: int) -> list[int]:
        """What follows the text's end elsewhere."""


def ngram_rows(trace: Trace, min_match: int, max_match: int) -> LookupRows:
    """Looks every row of a trace up, with the index that decoding uses.

    Args:
        trace: Tokens of a prompt and of plain decoding.
        min_match: Shortest n-gram to look up.
        max_match: Longest n-gram to look up.
    """
    return lookup_rows(trace, NgramIndex(min_match, max_match))


def suffix_rows(trace: Trace, spec: SuffixSpec, arrays: Mapping[str, Tensor]) -> LookupRows:
    """Looks every row of a trace up, with the automaton and the table that decoding uses.

    Args:
        trace: Tokens of a prompt and of plain decoding.
        spec: What to look up; its own limit of draft tokens is not applied.
        arrays: Where the corpus is, if the spec wants one: the trace's fold's own, lest it find itself
            (:func:`~selfspec_calibrate.folds.fold_arrays`).

    Raises:
        PlanError: The spec wants a corpus, and there is none.
    """
    return lookup_rows(trace, SuffixLookup(spec, spec.corpus_of(arrays)))


def lookup_rows(trace: Trace, lookup: Lookup) -> LookupRows:
    """Looks every row of a trace up, with a lookup that has seen nothing yet."""
    output = list(trace.output_ids)
    ids = list(trace.prompt_ids)
    available, matched = [], []
    for row in range(len(output) - 1):
        ids.append(output[row])
        lookup.extend_to(ids)
        drafted = lookup.continuation(LONGEST)
        available.append(len(drafted))
        matched.append(common_prefix(drafted, output[row + 1 : row + 1 + LONGEST]))
    return LookupRows(np.array(available, dtype=np.int64), np.array(matched, dtype=np.int64))
