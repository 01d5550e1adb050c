"""The one loop: draft → verify → accept → commit → record.

Plain decoding is the same loop with nothing drafted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from selfspec_runtime.controllers.fixed import FixedController
from selfspec_runtime.drafts.draft import Draft
from selfspec_runtime.drafts.source import RoundContext
from selfspec_runtime.executors.eager import EagerExecutor
from selfspec_runtime.executors.executor import ExecutedRound
from selfspec_runtime.prompt_pass import read_prompt
from selfspec_runtime.schedulers.scheduler import Scheduler
from selfspec_runtime.stats import AcceptanceStats, PhaseSeconds
from selfspec_runtime.verifier import Verifier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selfspec_runtime.cache import KVCache
    from selfspec_runtime.controllers.controller import Controller
    from selfspec_runtime.drafts.source import DraftSource
    from selfspec_runtime.executors.executor import Executor
    from selfspec_runtime.rules import AcceptanceRule
    from selfspec_runtime.sequence import Sequence
    from selfspec_runtime.stopping import FinishReason, Stopper
    from selfspec_runtime.target import Target


@dataclass(frozen=True, kw_only=True)
class Round:
    """What one round did.

    Attributes:
        token_ids: Committed tokens.
        draft: What was proposed.
        num_accepted: How many of the committed tokens the draft had proposed, an accepted branch's included.
        draft_s: Seconds spent drafting.
        verify_s: Seconds spent in the target's pass.
        host_s: Seconds spent on the rest.
        finish_reason: Set on the last round.
        branch: Number of the side branch that the last accepted token belongs to, if it is not the chain's.
    """

    token_ids: tuple[int, ...]
    draft: Draft
    num_accepted: int
    draft_s: float
    verify_s: float
    host_s: float
    finish_reason: FinishReason | None
    branch: int | None = None


@dataclass
class RunRecord:
    """Counts and seconds of one generation, filled in as it goes; notices, for the user, at its end."""

    stats: AcceptanceStats = field(default_factory=AcceptanceStats)
    seconds: PhaseSeconds = field(default_factory=PhaseSeconds)
    notices: list[str] = field(default_factory=list)


class Decoder:
    """Generates from a target, with or without a draft source.

    Args:
        target: The model.
        source: What drafts; None for plain decoding.
        controller: How far it drafts; ignored without a source.
        executor: What runs the rounds; pass by pass by default.
        scheduler: Decides when drafting happens; drafts and verifies in turn by default.
    """

    def __init__(
        self,
        target: Target,
        source: DraftSource | None = None,
        controller: Controller | None = None,
        executor: Executor | None = None,
        scheduler: Scheduler | None = None,
    ) -> None:
        self.target = target
        self.source = source
        self.controller = controller or FixedController(0)
        self.executor = executor or EagerExecutor()
        self.scheduler = scheduler or Scheduler()
        self.verifier = Verifier(target)

    def run(
        self, sequence: Sequence, cache: KVCache, *, rule: AcceptanceRule, stopper: Stopper, record: RunRecord
    ) -> Iterator[Round]:
        """Decodes until a stop condition holds.

        Args:
            sequence: Holds the prompt; committed tokens are appended.
            cache: May hold a beginning of the prompt already (``cache.length`` positions), or all of it and more: the
                prompt's last token runs again in any case, and what follows is overwritten.
            rule: Draws and accepts tokens.
            stopper: Ends the generation.
            record: Receives counts and seconds.

        Yields:
            One round at a time; the first holds the token that follows the prompt.
        """
        self.scheduler.reset()
        try:
            yield from self._rounds(sequence, cache, rule=rule, stopper=stopper, record=record)
        finally:
            self.scheduler.close()
            record.notices.extend(self.scheduler.notices)
            record.notices.extend(filter(None, (self.executor.notice,)))

    def _rounds(
        self, sequence: Sequence, cache: KVCache, *, rule: AcceptanceRule, stopper: Stopper, record: RunRecord
    ) -> Iterator[Round]:
        self.controller.reset()
        if self.source is not None:
            self.source.reset()
        self.executor.begin(cache)
        first = self._prefill(sequence, cache, rule=rule, stopper=stopper)
        record.seconds.prefill += first.verify_s
        yield first
        finish = first.finish_reason
        while finish is None:
            outcome = self._round(sequence, cache, rule=rule, stopper=stopper)
            self.scheduler.observe(draft_s=outcome.draft_s, verify_s=outcome.verify_s)
            _count(outcome, record)
            finish = outcome.finish_reason
            yield outcome

    def _prefill(self, sequence: Sequence, cache: KVCache, *, rule: AcceptanceRule, stopper: Stopper) -> Round:
        started = perf_counter()
        start = min(cache.length, sequence.last_position)
        logits = read_prompt(self.target, sequence.tensor(), cache, start=start)
        verdict = rule.decide(Draft(), logits, sequence)
        cache.length = len(sequence)
        sequence.append(verdict.token_id)
        finish = stopper.check(sequence)
        seconds = perf_counter() - started
        return Round(
            token_ids=(verdict.token_id,),
            draft=Draft(),
            num_accepted=0,
            draft_s=0.0,
            verify_s=seconds,
            host_s=0.0,
            finish_reason=finish,
        )

    def _round(self, sequence: Sequence, cache: KVCache, *, rule: AcceptanceRule, stopper: Stopper) -> Round:
        started = perf_counter()
        room = stopper.room(sequence)
        executed = self.executor.round(sequence, cache, rule=rule, room=room)
        if executed is None:
            executed = self._pass_by_pass(sequence, cache, rule, room)
        draft, verdict = executed.draft, executed.verdict
        wanted = [*draft.path(verdict.num_on_chain, verdict.branch), verdict.token_id]
        draft.compact(cache, sequence.last_position, branch=verdict.branch)
        committed, finish = _commit(wanted, sequence, cache, stopper)
        accepted = min(verdict.num_accepted, len(committed))
        self._observe(draft, accepted, on_chain=min(verdict.num_on_chain, accepted))
        return Round(
            token_ids=tuple(committed),
            draft=draft,
            num_accepted=accepted,
            draft_s=executed.draft_s,
            verify_s=executed.verify_s,
            host_s=perf_counter() - started - executed.draft_s - executed.verify_s,
            finish_reason=finish,
            branch=verdict.branch if accepted == verdict.num_accepted else None,
        )

    def _pass_by_pass(self, sequence: Sequence, cache: KVCache, rule: AcceptanceRule, room: int) -> ExecutedRound:
        started = perf_counter()
        draft = self._draft(sequence, cache, rule, room)
        drafted = perf_counter()
        self.scheduler.start(sequence, draft, cache, rule=rule, controller=self.controller)
        logits = self.verifier.verify(sequence, draft, cache)
        _synchronize(logits.device)
        verified = perf_counter()
        verdict = rule.decide(draft, logits, sequence)
        return ExecutedRound(draft, verdict, drafted - started, verified - drafted)

    def _draft(self, sequence: Sequence, cache: KVCache, rule: AcceptanceRule, room: int) -> Draft:
        if self.source is None or room == 0:
            return Draft()
        budget = min(self.controller.budget(), room)
        if budget == 0:
            return Draft()
        context = RoundContext(sequence, cache, rule, self.controller, budget, room)
        return self.scheduler.draft(self.source, context)

    def _observe(self, draft: Draft, accepted: int, *, on_chain: int) -> None:
        self.controller.observe(
            num_drafted=len(draft),
            num_accepted=accepted,
            num_passes=draft.num_passes,
            num_verified=len(draft.node_ids),
        )
        if self.source is not None:
            self.source.observe(draft, num_accepted=on_chain)


def _commit(
    token_ids: list[int], sequence: Sequence, cache: KVCache, stopper: Stopper
) -> tuple[list[int], FinishReason | None]:
    """Appends tokens one by one until a stop condition holds, and rolls the cache back to what they cover."""
    finish: FinishReason | None = None
    committed = []
    for token_id in token_ids:
        sequence.append(token_id)
        committed.append(token_id)
        finish = stopper.check(sequence)
        if finish is not None:
            break
    cache.length = len(sequence) - 1
    return committed, finish


def _count(outcome: Round, record: RunRecord) -> None:
    record.stats.record(
        drafted=len(outcome.draft.node_ids),
        depth=len(outcome.draft),
        accepted=outcome.num_accepted,
        emitted=len(outcome.token_ids),
        draft_passes=outcome.draft.num_passes,
    )
    record.seconds.draft += outcome.draft_s
    record.seconds.verify += outcome.verify_s
    record.seconds.host += outcome.host_s


def _synchronize(device: torch.device) -> None:
    """The split of a round's time is only true once the device has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
