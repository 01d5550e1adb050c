"""Plain decoding while speculation loses, and probes that find out when it no longer does.

A cumulative sum (Page 1954) of what rounds cost beyond what they bring ends speculation; how long plain decoding
then lasts follows from what was lost so far, so that a hopeless draft costs a bounded share of any text.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from selfspec_runtime.controllers.controller import Controller

if TYPE_CHECKING:
    from selfspec_runtime.controllers.costs import RoundCosts


class FallbackController(Controller):
    """Lets another controller decide while speculation pays, and asks for plain steps while it does not.

    All costs are in plain steps, each of which brings one token. A round loses what it costs beyond the tokens that
    it brings. Only outcomes of earlier rounds count, so that the law stays the target's.

    Args:
        inner: Decides how far to draft.
        costs: What rounds cost.
        patience: Accumulated loss at which speculation is switched off; also the most that a first round may lose.
        probe_patience: The same for a probe: speculation after a rest that has not paid yet.
        max_overhead: Share of the text that all losses together may come to before the next probe.
        min_interval: Plain steps before the first probe; they double with every probe that loses.
        max_interval: Most plain steps before a probe.
    """

    def __init__(
        self,
        inner: Controller,
        costs: RoundCosts,
        *,
        patience: float = 8.0,
        probe_patience: float = 2.0,
        max_overhead: float = 0.02,
        min_interval: int = 16,
        max_interval: int = 512,
    ) -> None:
        self.inner = inner
        self.costs = costs
        self.needs_confidence = inner.needs_confidence
        self.patience = patience
        self.probe_patience = probe_patience
        self.max_overhead = max_overhead
        self.min_interval = min_interval
        self.max_interval = max_interval
        self._emitted = 0
        self._balance = 0.0
        self._loss = 0.0
        self._rest = 0
        self._interval = min_interval

    @property
    def is_resting(self) -> bool:
        """Whether the coming round is a plain step because speculation loses."""
        return self._rest > 0

    def budget(self) -> int:
        """The inner controller's budget, cut to what may be lost; 0 while resting."""
        if self.is_resting:
            return 0
        stake = self.patience + max(self._balance, 0.0)
        number = self.inner.budget()
        while number > 1 and self.costs.of_round(number) - 1.0 > stake:
            number -= 1
        return number

    def wants_more(self, num_drafted: int, confidence: float) -> bool:
        """What the inner controller says, within the budget."""
        return num_drafted < self.budget() and self.inner.wants_more(num_drafted, confidence)

    def observe(
        self, *, num_drafted: int, num_accepted: int, num_passes: int | None = None, num_verified: int | None = None
    ) -> None:
        """Books the round; a plain step brings the next probe nearer."""
        self._emitted += num_accepted + 1
        if num_drafted == 0:
            self._rest = max(self._rest - 1, 0)
            return
        self.inner.observe(
            num_drafted=num_drafted, num_accepted=num_accepted, num_passes=num_passes, num_verified=num_verified
        )
        cost = self.costs.of_round(
            num_verified or num_drafted, num_passes=num_drafted if num_passes is None else num_passes
        )
        self._book(cost - (num_accepted + 1))

    def reset(self) -> None:
        """Speculates again, with nothing lost or won."""
        self.inner.reset()
        self._emitted = 0
        self._balance = 0.0
        self._loss = 0.0
        self._rest = 0
        self._interval = self.min_interval

    def _book(self, lost: float) -> None:
        self._balance -= lost
        self._loss = max(self._loss + lost, 0.0)
        if self._loss == 0.0:
            self._interval = self.min_interval
        elif self._loss > self.patience:
            self._switch_off()

    def _switch_off(self) -> None:
        """Rests until the losses are a small enough share of the text, and for longer than the last time."""
        until_paid = ceil(-self._balance / self.max_overhead) - self._emitted
        self._rest = min(max(self._interval, until_paid), self.max_interval)
        self._interval = min(2 * self._interval, self.max_interval)
        self._loss = self.patience - self.probe_patience
