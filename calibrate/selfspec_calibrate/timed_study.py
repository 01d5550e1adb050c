"""The timed study: plans decode for real, in mirrored blocks with plain decoding, and the fastest is found."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from time import monotonic

import optuna

from selfspec_calibrate import events
from selfspec_calibrate.early_stop import is_hopeless, wilcoxon_pruner
from selfspec_calibrate.interleave import run_block, shuffled
from selfspec_calibrate.interruption import InterruptGuard, interrupted_message
from selfspec_calibrate.measurement import EngineArm, MeasuredPrompt, PlanEngine, warm_up
from selfspec_calibrate.pair import PromptPair, speedup
from selfspec_calibrate.plan_queue import PlanQueue, StartedTrial
from selfspec_calibrate.ranking import best_complete, ranked, timed_plans
from selfspec_calibrate.study_storage import STORAGE_FAILURES, storage_error
from selfspec_calibrate.timed_trial import TimedTrial
from selfspec_calibrate.trial_book import PlanEvidence, TrialBook, plan_key
from selfspec_calibrate.workspace import Workspace
from selfspec_runtime.calibration import TimedPlan
from selfspec_runtime.errors import Interrupted, SelfspecError
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.plan import PLAIN, DraftPlan

PLANS_PER_BLOCK = 2
"""Plans that share a baseline: plain, A, B, B, A, plain."""


def _unpredicted(plan: DraftPlan) -> None:
    del plan


@dataclass(frozen=True, kw_only=True)
class TimedStudy:
    """A search over plans by decoding.

    Plans are compared with each other, so a study should hold plans that may take each other's place: one study for
    each step of extra memory, or the plans of the smaller step would be pruned for losing against the larger's.

    Attributes:
        workspace: Where it is kept; a study of the same name goes on where it was left, provided that prompts and
            settings are the same.
        make_engine: Makes an engine for a plan, on a target that all engines share.
        prompts: The search prompts.
        settings: How to generate.
        leaders: Plans to begin with, each with its predicted speedup or None.
        neighbours: Plans that differ from a plan in one step.
        predict: Gives a neighbour's predicted speedup, or None.
        name: Of the study.
        deadline: Time of ``clock`` after which no prompt is begun, or None.
        at_least: Plans to settle whatever the deadline.
        max_trials: Most plans to settle, those of earlier runs included, or None.
        repeats: Mirrored blocks per prompt.
        seed: Of the sampler and of the order of prompts.
        clock: Gives seconds.
        listener: Hears of progress.
    """

    workspace: Workspace
    make_engine: Callable[[DraftPlan], PlanEngine]
    prompts: Sequence[MeasuredPrompt]
    settings: GenerationSettings
    leaders: Sequence[tuple[DraftPlan, float | None]]
    neighbours: Callable[[DraftPlan], Sequence[DraftPlan]]
    predict: Callable[[DraftPlan], float | None] = _unpredicted
    name: str = "timed"
    deadline: float | None = None
    at_least: int = 0
    max_trials: int | None = None
    repeats: int = 1
    seed: int = 0
    clock: Callable[[], float] = monotonic
    listener: events.Listener = events.ignore

    def run(self) -> tuple[TimedPlan, ...]:
        """Times plans until the deadline, the number of trials, or the search's own end.

        Returns:
            All plans that were timed and plain decoding, best first; those that went through all prompts before
            those that were given up.

        Raises:
            Interrupted: Ctrl-C; what was measured is saved.
            SelfspecError: Plain decoding fails, or nothing can be stored.
        """
        try:
            with InterruptGuard() as guard:
                self._settle_plain()
                while batch := self._next_batch(guard):
                    self._time(batch, guard)
            if guard.requested:
                raise self._interrupted()
            return timed_plans(self._evidence(), num_prompts=len(self.prompts))
        except KeyboardInterrupt as error:
            raise self._interrupted() from error
        except STORAGE_FAILURES as error:
            raise storage_error(self.workspace.storage_url, error) from error

    @cached_property
    def _book(self) -> TrialBook:
        name = f"{self.name}-{self._work}"
        return TrialBook(self.workspace.open_study(name, pruner=wilcoxon_pruner(self._num_kinds)))

    @property
    def _work(self) -> str:
        """What each trial has to do; trials that did something else are not to be compared with."""
        work = (self.settings.max_new_tokens, self.settings.sampling, self.repeats, [*map(_identity, self.prompts)])
        return f"{zlib.crc32(repr(work).encode()):08x}"

    @cached_property
    def _queue(self) -> PlanQueue:
        return PlanQueue(
            book=self._book, leaders=self.leaders, neighbours=self.neighbours, predict=self.predict, seed=self.seed
        )

    @cached_property
    def _plain(self) -> EngineArm:
        """The baseline, warmed up."""
        engine = self.make_engine(PLAIN)
        warm_up(engine, self.prompts[0], self.settings)
        return EngineArm("plain", engine)

    @cached_property
    def _num_kinds(self) -> int:
        return len({prompt.kind for prompt in self.prompts})

    def _settle_plain(self) -> None:
        """The first trial is plain decoding, which is as fast as itself on each prompt."""
        known = self._book.evidence().get(plan_key(PLAIN))
        if known is not None and known.is_settled:
            return
        trial = self._book.study.ask()
        self._book.start(trial, PLAIN, origin="plain", predicted=1.0)
        for step in range(len(self.prompts)):
            trial.report(1.0, step)
        self._book.complete(trial, 1.0)

    def _next_batch(self, guard: InterruptGuard) -> list[StartedTrial]:
        if guard.requested or self._is_late():
            return []
        room = PLANS_PER_BLOCK
        if self.max_trials is not None:
            room = min(room, self.max_trials - self.num_settled)
        return self._queue.next(room) if room > 0 else []

    @property
    def num_settled(self) -> int:
        """Plans that are done with, those that failed and those of earlier runs included; plain decoding is none."""
        return sum(each.is_settled and not each.plan.is_plain for each in self._evidence())

    def _is_late(self) -> bool:
        if self.deadline is None or self.clock() < self.deadline:
            return False
        return self.num_settled >= self.at_least

    def _time(self, batch: list[StartedTrial], guard: InterruptGuard) -> None:
        """Takes a batch through the prompts, and leaves no trial running whatever happens."""
        evidence = self._book.evidence()
        runs = [TimedTrial(started, evidence[plan_key(started.plan)].pairs) for started in batch]
        try:
            self._walk(runs, guard)
        finally:
            for run in runs:
                if run.is_live:
                    self._end(run, self._book.abandon)

    def _walk(self, runs: list[TimedTrial], guard: InterruptGuard) -> None:
        order = shuffled(self.prompts, seed=self.seed + runs[0].order_seed)
        for place, prompt in enumerate(order):
            if place and (guard.requested or self._is_late()):
                return
            live = [run for run in runs if run.is_live]
            if not live:
                return
            self._measure(live, prompt)
            for run in live:
                self._judge(run, prompt)
        for run in runs:
            if run.is_live:
                self._complete(run)

    def _measure(self, runs: list[TimedTrial], prompt: MeasuredPrompt) -> None:
        fresh = [run for run in runs if prompt.prompt_id not in run.known and self._is_ready(run)]
        if not fresh:
            return
        arms = [self._plain, *(run.arm for run in fresh)]
        block = run_block(arms, prompt, self.settings, repeats=self.repeats)
        for run in fresh:
            if run.arm.name in block.failures:
                self._fail(run, block.failures[run.arm.name])
                continue
            run.own[prompt.prompt_id] = PromptPair.of(block.runs[self._plain.name], block.runs[run.arm.name])
            self._book.record(run.started.trial, run.own.values())

    def _is_ready(self, run: TimedTrial) -> bool:
        failure = run.prepare(self.make_engine, self.prompts[0], self.settings)
        if failure is not None:
            self._fail(run, failure)
        return run.is_live

    def _judge(self, run: TimedTrial, prompt: MeasuredPrompt) -> None:
        """Reports a prompt, and gives the trial up if it cannot win."""
        pair = run.pairs.get(prompt.prompt_id)
        if not run.is_live or pair is None or not pair.is_timed:
            return
        step = next(step for step, each in enumerate(self.prompts) if each.prompt_id == prompt.prompt_id)
        run.started.trial.report(pair.ratio, step)
        if run.started.trial.should_prune() or self._is_hopeless(run):
            self._end(run, self._book.prune)

    def _is_hopeless(self, run: TimedTrial) -> bool:
        best = best_complete(self._evidence())
        return is_hopeless(run.pairs, None if best is None else best.pairs, num_kinds=self._num_kinds)

    def _complete(self, run: TimedTrial) -> None:
        value = speedup(run.pairs.values())
        if value is None:
            self._fail(run, SelfspecError("no search prompt was answered with more than one token"))
            return
        self._end(run, lambda trial: self._book.complete(trial, value))

    def _fail(self, run: TimedTrial, error: SelfspecError) -> None:
        self._end(run, lambda trial: self._book.fail(trial, str(error)))
        self.listener(events.Noted(f"{run.started.plan.describe()} could not be timed: {error}"))

    def _end(self, run: TimedTrial, tell: Callable[[optuna.Trial], None]) -> None:
        run.is_live = False
        run.engine = None
        tell(run.started.trial)
        best = next(iter(ranked(self._evidence())), None)
        self.listener(
            events.Progressed(
                name=self.name,
                done=self.num_settled,
                detail=run.started.plan.describe(),
                best=None if best is None else best.speedup,
            )
        )

    def _evidence(self) -> list[PlanEvidence]:
        return list(self._book.evidence().values())

    def _interrupted(self) -> Interrupted:
        saved = f"{self.num_settled} timed plans are saved in {self.workspace.folder}"
        return Interrupted(interrupted_message(saved))


def _identity(prompt: MeasuredPrompt) -> tuple[str, str]:
    return prompt.prompt_id, prompt.kind
