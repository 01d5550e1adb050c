"""Decides whether to draft ahead, from measured times and hits."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean, median

from selfspec_runtime.schedulers.break_even import AheadTimes


@dataclass
class _Trial:
    """What one trial measured, in seconds, one entry per round."""

    draft_s: list[float] = field(default_factory=list)
    verify_s: list[float] = field(default_factory=list)
    ahead_verify_s: list[float] = field(default_factory=list)
    hits: list[bool] = field(default_factory=list)
    prepare_s: list[float] = field(default_factory=list)
    backup_s: list[float] = field(default_factory=list)


class AheadGate:
    """Tries both ways for some rounds each, keeps the faster one for longer, and tries again.

    Args:
        min_gain: Speed over drafting and verifying in turn that drafting ahead has to reach.
        trial_rounds: Rounds of each way in a trial.
        interval: Rounds from a trial to the next; doubles while drafting ahead loses.
        max_interval: The most.

    Attributes:
        is_on: Whether the coming verification should be drafted ahead of.
        times: What the last trial measured; None before its end.
        num_rounds: Rounds drafted ahead of whose outcome is known.
        num_hits: Those whose outcome had been prepared for.
    """

    def __init__(
        self, *, min_gain: float = 1.03, trial_rounds: int = 12, interval: int = 64, max_interval: int = 1_024
    ) -> None:
        self.min_gain = min_gain
        self.trial_rounds = trial_rounds
        self.first_interval = interval
        self.max_interval = max_interval
        self.reset()

    def reset(self) -> None:
        """Begins with a trial, its rounds in turn first."""
        self.is_on = False
        self.times: AheadTimes | None = None
        self.num_rounds = 0
        self.num_hits = 0
        self._trial: _Trial | None = _Trial()
        self._left = self.trial_rounds
        self._interval = self.first_interval

    @property
    def notices(self) -> tuple[str, ...]:
        """That drafting ahead was switched off, and by what numbers."""
        times = self.times
        if times is None or times.gain >= self.min_gain:
            return ()
        return (
            f"Drafting while the target verifies was switched off: {times.hit_rate:.0%} of the outcomes were foreseen, "
            f"which makes decoding {times.gain:.2f} times as fast as drafting in turn, below {self.min_gain:.2f}.",
        )

    def record_in_turn(self, *, draft_s: float | None, verify_s: float) -> None:
        """Books a round in which nothing ran beside the verification.

        Args:
            draft_s: Seconds of drafting; None if the draft had been prepared beside the verification before.
            verify_s: Seconds of the verification.
        """
        if self._trial is not None:
            self._trial.verify_s.append(verify_s)
            if draft_s is not None:
                self._trial.draft_s.append(draft_s)
        self._next()

    def record_ahead(self, *, verify_s: float) -> None:
        """Books a verification beside which drafts were prepared; its outcome is reported apart."""
        if self._trial is not None:
            self._trial.ahead_verify_s.append(verify_s)
        self._next()

    def record_outcome(self, *, prepare_s: float | None, backup_s: float = 0.0) -> None:
        """Books whether a verification's outcome had been prepared for.

        Args:
            prepare_s: Seconds from the verification's start until the draft was ready; None for a miss.
            backup_s: Seconds that drafting took after a miss.
        """
        hit = prepare_s is not None
        self.num_rounds += 1
        self.num_hits += hit
        if self._trial is None:
            return
        self._trial.hits.append(hit)
        if prepare_s is None:
            self._trial.backup_s.append(backup_s)
        else:
            self._trial.prepare_s.append(prepare_s)

    def _next(self) -> None:
        self._left -= 1
        if self._left > 0:
            return
        if self._trial is None:
            self._trial, self._left, self.is_on = _Trial(), self.trial_rounds, False
        elif not self.is_on:
            self._left, self.is_on = self.trial_rounds, True
        else:
            self._decide(self._trial)

    def _decide(self, trial: _Trial) -> None:
        self.times = _times(trial)
        self.is_on = self.times is not None and self.times.gain >= self.min_gain
        self._trial = None
        self._interval = self.first_interval if self.is_on else min(2 * self._interval, self.max_interval)
        self._left = self._interval


def _times(trial: _Trial) -> AheadTimes | None:
    """The trial in units of a verification; None if it saw too little to go by."""
    verify_s = median(trial.verify_s)
    if not (trial.hits and trial.draft_s and trial.ahead_verify_s) or verify_s <= 0.0:
        return None
    draft_s = fmean(trial.draft_s)
    return AheadTimes(
        hit_rate=fmean(trial.hits),
        prepare=_mean(trial.prepare_s, 0.0) / verify_s,
        backup=_mean(trial.backup_s, draft_s) / verify_s,
        draft=draft_s / verify_s,
        verify=median(trial.ahead_verify_s) / verify_s,
    )


def _mean(values: list[float], otherwise: float) -> float:
    return fmean(values) if values else otherwise
