"""A static table of texts, in which the longest end of a running text is found by bisection.

The places of the texts are sorted by the tokens before them, read backwards: eight bytes per token instead of the
seventy of a suffix automaton, for a few dozen comparisons per lookup (a suffix array, Manber and Myers 1990).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from selfspec_runtime.errors import PlanError
from selfspec_runtime.sequence import common_prefix

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

#: Arrays of a calibration: tokens int32 ``[N]``, -1 around every text; places int32 ``[P]`` in order.
TOKENS_NAME = "corpus.tokens"
PLACES_NAME = "corpus.places"

#: Tokens before a place that are compared; longer matches count as that long.
MAX_MATCH = 24
#: Places of a match that are followed; more would only sharpen the counts.
MAX_PLACES = 256
BOUNDARY = -1


@dataclass(frozen=True)
class CorpusMatch:
    """Places of the texts that what comes before them has in common with a running text.

    Attributes:
        length: Tokens in common, at most `MAX_MATCH`.
        places: Indices of the tokens that follow.
    """

    length: int
    places: NDArray[np.int32]


class CorpusTable:
    """Texts that can be looked up.

    Args:
        tokens: int32 ``[N]``, -1 before, between and after texts.
        places: int32 ``[P]``, the order of :func:`corpus_arrays`.
    """

    def __init__(self, tokens: NDArray[np.int32], places: NDArray[np.int32]) -> None:
        self._tokens, self._places = tokens, places

    @classmethod
    def of(cls, arrays: Mapping[str, Tensor]) -> CorpusTable:
        """The table that a calibration holds.

        Raises:
            PlanError: It holds none, or a broken one.
        """
        if TOKENS_NAME not in arrays or PLACES_NAME not in arrays:
            message = (
                "The table of calibration texts is missing: it is made by `selfspec calibrate` and lies beside the "
                "calibration file as .safetensors. Keep both together, or set corpus to false."
            )
            raise PlanError(message)
        tokens, places = (arrays[name].cpu().numpy() for name in (TOKENS_NAME, PLACES_NAME))
        if len(places) and not 0 < places.min() <= places.max() < len(tokens):
            message = "The table of calibration texts names places that it has not. Calibrate again."
            raise PlanError(message)
        return cls(tokens, places)

    @property
    def num_bytes(self) -> int:
        """Memory of both arrays."""
        return self._tokens.nbytes + self._places.nbytes

    def match(self, ids: Sequence[int]) -> CorpusMatch:
        """Where the longest end of some ids occurs."""
        wanted = tuple(reversed(ids[-MAX_MATCH:]))
        place = bisect_left(self._places, wanted, key=self._before)
        near = self._places[max(place - 1, 0) : place + 1]
        length = max((common_prefix(self._before(index), wanted) for index in near), default=0)
        if length == 0:
            return CorpusMatch(0, self._places[:0])

        def beginning(index: int) -> tuple[int, ...]:
            return self._before(index)[:length]

        low = bisect_left(self._places, wanted[:length], hi=place, key=beginning)
        most = min(low + MAX_PLACES, len(self._places))
        high = bisect_right(self._places, wanted[:length], lo=low, hi=most, key=beginning)
        return CorpusMatch(length, self._places[low:high])

    def continuation(self, match: CorpusMatch, max_tokens: int, *, min_probability: float = 0.0) -> list[int]:
        """What most often follows a match, token after token, the lowest id of equals.

        Args:
            match: From :meth:`match`.
            max_tokens: Most tokens wanted.
            min_probability: Ends where the product of the tokens' shares falls below it.
        """
        found: list[int] = []
        probability, places = 1.0, match.places
        while len(found) < max_tokens and len(places):
            following = self._tokens[places]
            token, count = max(Counter(following.tolist()).items(), key=lambda item: (item[1], -item[0]))
            probability *= count / len(places)
            if token == BOUNDARY or probability < min_probability:
                break
            found.append(token)
            places = places[following == token] + 1
        return found

    def _before(self, place: int) -> tuple[int, ...]:
        return _backwards(self._tokens, place)


def corpus_arrays(texts: Iterable[Sequence[int]]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Tokens and places of texts, as :class:`CorpusTable` wants them.

    Args:
        texts: Token ids, none of them negative.
    """
    joined = [BOUNDARY]
    for text in texts:
        joined += [*text, BOUNDARY]
    tokens = np.array(joined, dtype=np.int32)
    # Nothing precedes a text's first token, and nothing is asked of what follows its last.
    inner = [place for place in range(2, len(joined)) if BOUNDARY not in joined[place - 1 : place + 1]]
    return tokens, np.array(sorted(inner, key=lambda place: _backwards(tokens, place)), dtype=np.int32)


def _backwards(tokens: NDArray[np.int32], place: int) -> tuple[int, ...]:
    """The tokens before a place, the nearest first."""
    return tuple(tokens[max(place - MAX_MATCH, 0) : place][::-1].tolist())
