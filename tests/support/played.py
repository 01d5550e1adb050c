"""Plays a controller against a draft whose acceptance is known, and counts what it costs; no model, no clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from selfspec_runtime.controllers.controller import Controller
from selfspec_runtime.controllers.costs import RoundCosts

#: From the number of tokens said so far to the chance that a draft token is accepted.
Chance = Callable[[int], float]


@dataclass
class Played:
    """What was counted, in plain steps.

    Attributes:
        tokens: Tokens said.
        cost: What they cost.
        lengths: Draft tokens of each round.
        starts: Tokens said before each round.
    """

    tokens: int = 0
    cost: float = 0.0
    lengths: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)

    @property
    def speedup(self) -> float:
        """Over plain decoding, which says one token per unit of cost."""
        return self.tokens / self.cost

    def drafted_between(self, first: int, last: int) -> list[int]:
        """Lengths of the rounds that started within these numbers of tokens."""
        return [n for n, start in zip(self.lengths, self.starts, strict=True) if first <= start < last]


def play(
    controller: Controller, costs: RoundCosts, chance: Chance, *, num_tokens: int, seed: int = 0, knows: bool = True
) -> Played:
    """Plays rounds until the text is long enough.

    Args:
        controller: Is reset first.
        costs: What rounds cost.
        chance: Of each draft token.
        num_tokens: Length of the text.
        seed: Of the draft's luck.
        knows: Whether the draft's confidence tells what will be accepted; else it is always sure.
    """
    random, played = Random(seed), Played()
    controller.reset()
    while played.tokens < num_tokens:
        drafted, accepted = _round(controller, random, chance(played.tokens), knows=knows)
        controller.observe(num_drafted=drafted, num_accepted=accepted)
        played.lengths.append(drafted)
        played.starts.append(played.tokens)
        played.tokens += accepted + 1
        played.cost += costs.of_round(drafted)
    return played


def _round(controller: Controller, random: Random, chance: float, *, knows: bool) -> tuple[int, int]:
    outcomes: list[bool] = []
    budget = controller.budget()
    while len(outcomes) < budget:
        outcomes.append(random.random() < chance)
        confidence = 1.0 if outcomes[-1] or not knows else 0.1
        if not controller.wants_more(len(outcomes), confidence):
            break
    accepted = outcomes.index(False) if False in outcomes else len(outcomes)
    return len(outcomes), accepted
