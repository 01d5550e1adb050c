"""Which outcomes of a verification are worth preparing for (2603.03251, section 4)."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush


@dataclass(frozen=True)
class Place:
    """A guess at an outcome, before it has a token.

    Attributes:
        num_accepted: Draft tokens that are accepted.
        rank: Which of the likely next tokens follows them, from 0.
    """

    num_accepted: int
    rank: int


def likely_places(num_drafted: int, number: int, *, acceptance: float, miss_exponent: float = 1.0) -> list[Place]:
    """The likeliest outcomes, likeliest first.

    Tokens are accepted with the same chance each, and the chance that the next token is none of the ``F`` likeliest
    falls as ``F ** -miss_exponent``. The guesses of highest marginal chance are then, but for rounding, the paper's
    geometric fan-out: ``F_k = F_0 a^(k / (1 + r))``, the last place getting ``(1 - a)^(-1 / (1 + r))`` times as many.

    Args:
        num_drafted: Tokens that are verified.
        number: Guesses to return.
        acceptance: Chance that a draft token is accepted.
        miss_exponent: ``r``.
    """
    chances = [acceptance**k * (1.0 - acceptance) for k in range(num_drafted)] + [acceptance**num_drafted]
    heap = [(-chance, k, 0) for k, chance in enumerate(chances)]
    heapify(heap)
    found: list[Place] = []
    while len(found) < number:
        _, k, rank = heappop(heap)
        found.append(Place(k, rank))
        heappush(heap, (-chances[k] * (rank + 2) ** -(1.0 + miss_exponent), k, rank + 1))
    return found
