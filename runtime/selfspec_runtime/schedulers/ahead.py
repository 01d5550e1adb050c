"""Drafting for the likely outcomes of a verification while it runs (Saguaro, Kumar et al. 2603.03251).

The draft for the outcome that comes true is there at once. It is the draft that would have been made anyway, drawn
with the same noise and chosen by the outcome alone, so that the output law is untouched.
"""

from __future__ import annotations

from copy import deepcopy
from time import perf_counter
from typing import TYPE_CHECKING

from selfspec_runtime.schedulers.outcomes import likely_places
from selfspec_runtime.schedulers.preparation import Preparation
from selfspec_runtime.schedulers.preparer import Verification
from selfspec_runtime.schedulers.scheduler import Scheduler
from selfspec_runtime.schedulers.side_task import SideTask

if TYPE_CHECKING:
    from collections.abc import Callable

    from selfspec_runtime.cache import KVCache
    from selfspec_runtime.controllers.controller import Controller
    from selfspec_runtime.drafts.draft import Draft
    from selfspec_runtime.drafts.source import DraftSource, RoundContext
    from selfspec_runtime.rules import AcceptanceRule
    from selfspec_runtime.schedulers.gate import AheadGate
    from selfspec_runtime.schedulers.preparer import Preparer
    from selfspec_runtime.schedulers.side_task import Work
    from selfspec_runtime.sequence import Sequence

#: Tokens that the estimated acceptance starts from: two of three accepted.
PRIOR_ACCEPTED, PRIOR_DRAFTED = 2.0, 3.0


class AheadScheduler(Scheduler):
    """Prepares drafts beside each verification, as long as that pays.

    Args:
        preparer: Drafts, with scratch of its own.
        gate: Decides whether it pays.
        num_outcomes: Outcomes to prepare for.
        miss_exponent: How fast misses get rarer with more guesses, see :func:`likely_places`.
        clock: Seconds, for the gate.
        make_task: Runs the preparation beside the verification.
    """

    def __init__(
        self,
        preparer: Preparer,
        gate: AheadGate,
        *,
        num_outcomes: int = 8,
        miss_exponent: float = 1.0,
        clock: Callable[[], float] = perf_counter,
        make_task: Callable[[Work], SideTask] = SideTask,
    ) -> None:
        self.preparer = preparer
        self.gate = gate
        self.num_outcomes = num_outcomes
        self.miss_exponent = miss_exponent
        self._clock = clock
        self._make_task = make_task
        self._pending: Preparation | None = None
        self._refusal: str | None = None
        self._accepted, self._drafted = PRIOR_ACCEPTED, PRIOR_DRAFTED
        self._was_prepared = False
        self._beside: bool | None = None

    def draft(self, source: DraftSource, context: RoundContext) -> Draft:
        """The prepared draft if the outcome was foreseen, else one made now."""
        pending = self._pending
        self._was_prepared = pending is not None
        if pending is None:
            return source.propose(context)
        prepared = pending.finish(context.sequence.ids)
        self._pending = None
        self._count(pending, context.sequence.ids)
        if prepared is None:
            return self._backup(source, context)
        self.gate.record_outcome(prepare_s=prepared.ready_s)
        draft = self.preparer.cut(prepared.draft, context)
        # The lookup has nothing to say, but where it is only the first of several sources the next one may.
        return draft if len(draft) else source.propose(context)

    def start(
        self, sequence: Sequence, draft: Draft, cache: KVCache, *, rule: AcceptanceRule, controller: Controller
    ) -> None:
        """Begins to prepare, unless the gate is shut or the next round will be a plain step."""
        self._end()
        speculates = controller.budget() > 0 and not self._refuses(rule)
        self._beside = self.gate.is_on if speculates else None
        if not self._beside:
            return
        self.preparer.synchronize(cache)
        verification = Verification(tuple(sequence.ids), tuple(draft.token_ids), rule, deepcopy(controller))
        places = likely_places(
            len(draft),
            self.num_outcomes,
            acceptance=self._accepted / self._drafted,
            miss_exponent=self.miss_exponent,
        )
        self._pending = Preparation(self.preparer, verification, places, clock=self._clock, make_task=self._make_task)
        self._pending.start()

    def observe(self, *, draft_s: float, verify_s: float) -> None:
        """Books what the round took; a plain step while speculation rests says nothing."""
        if self._beside:
            self.gate.record_ahead(verify_s=verify_s)
        elif self._beside is not None:
            self.gate.record_in_turn(draft_s=None if self._was_prepared else draft_s, verify_s=verify_s)
        self._was_prepared, self._beside = False, None

    def reset(self) -> None:
        """Forgets text, hits and times."""
        self._end()
        self.preparer.reset()
        self.gate.reset()
        self._refusal = None
        self._accepted, self._drafted = PRIOR_ACCEPTED, PRIOR_DRAFTED
        self._was_prepared, self._beside = False, None

    def close(self) -> None:
        """Ends the preparation that runs, and forgets the text: an exception may have left it half taken in."""
        self._end()
        self.preparer.reset()

    @property
    def extra_bytes(self) -> int:
        """What the preparer holds."""
        return self.preparer.extra_bytes

    @property
    def notices(self) -> tuple[str, ...]:
        """Why nothing was drafted ahead, or that it was not worth it."""
        if self._refusal is not None:
            return (self._refusal,)
        return self.gate.notices

    def _refuses(self, rule: AcceptanceRule) -> bool:
        if self._refusal is None:
            self._refusal = self.preparer.refusal(rule)
        return self._refusal is not None

    def _backup(self, source: DraftSource, context: RoundContext) -> Draft:
        started = self._clock()
        draft = source.propose(context)
        self.gate.record_outcome(prepare_s=None, backup_s=self._clock() - started)
        return draft

    def _count(self, pending: Preparation, ids: list[int]) -> None:
        """Learns the acceptance from what the verification committed."""
        drafted = pending.verification.drafted
        accepted = len(ids) - len(pending.verification.text) - 1
        self._accepted += accepted
        self._drafted += accepted + (accepted < len(drafted))

    def _end(self) -> None:
        # Forgotten only once it has ended: Ctrl-C while waiting must not leave it running unknown.
        if self._pending is not None:
            self._pending.end()
            self._pending = None
