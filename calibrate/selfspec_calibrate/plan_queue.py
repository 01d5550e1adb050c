"""Which plans to time next: what was cut short, then the leaders, then neighbours of the best."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import optuna

from selfspec_calibrate.ranking import num_fruitless, ranked
from selfspec_calibrate.trial_book import Origin, PlanEvidence, TrialBook, plan_key
from selfspec_runtime.plan import DraftPlan

NUM_PARENTS = 3
"""Neighbours are tried of so many of the best plans."""

PATIENCE = 12
"""Neighbours in a row that bring nothing before the search ends early."""

_STARTUP_TRIALS = 5


@dataclass(frozen=True)
class StartedTrial:
    """A plan with the trial in which it is to be timed.

    Attributes:
        plan: The plan.
        trial: The running trial.
    """

    plan: DraftPlan
    trial: optuna.Trial


@dataclass(frozen=True, kw_only=True)
class PlanQueue:
    """Starts trials, so that no plan is timed twice in vain.

    Optuna's sampler chooses among neighbours by two parameters: the rank of the parent, and a place in the parent's
    list of neighbours. It learns thereby which kind of step pays; where it asks for a plan that is known, the next
    unknown one of the list is taken. Its seed and its history follow from the plans that are known, so an interrupted
    study goes on as it would have gone on.

    Attributes:
        book: What is known.
        leaders: Plans to begin with, each with its predicted speedup or None.
        neighbours: Plans that differ from a plan in one step, in an order that means the same for every plan.
        predict: Gives the predicted speedup of a neighbour, or None.
        seed: Of the sampler.
    """

    book: TrialBook
    leaders: Sequence[tuple[DraftPlan, float | None]]
    neighbours: Callable[[DraftPlan], Sequence[DraftPlan]]
    predict: Callable[[DraftPlan], float | None]
    seed: int

    def next(self, size: int) -> list[StartedTrial]:
        """Starts up to ``size`` trials; none if there is nothing left to try.

        A batch never mixes what was cut short with new plans, which depend on how those end.
        """
        return self._unfinished(size) or self._leaders(size) or self._neighbours(size)

    def _unfinished(self, size: int) -> list[StartedTrial]:
        found = [each for each in self.book.evidence().values() if not each.is_settled and not each.plan.is_plain]
        return [self._take_up(each) for each in found[:size]]

    def _take_up(self, each: PlanEvidence) -> StartedTrial:
        if not each.params:
            return self._start(self.book.study.ask(), each.plan, each.origin, each.predicted)
        self.book.study.sampler = _fixed(each.params)
        trial = self.book.study.ask()
        _suggest(trial)
        return self._start(trial, each.plan, each.origin, each.predicted)

    def _leaders(self, size: int) -> list[StartedTrial]:
        known = self.book.evidence()
        fresh: dict[str, tuple[DraftPlan, float | None]] = {}
        for plan, predicted in self.leaders:
            fresh.setdefault(plan_key(plan), (plan, predicted))
        chosen = [leader for key, leader in fresh.items() if key not in known][:size]
        return [self._start(self.book.study.ask(), plan, "leader", predicted) for plan, predicted in chosen]

    def _neighbours(self, size: int) -> list[StartedTrial]:
        known = self.book.evidence()
        if num_fruitless(known.values()) >= PATIENCE:
            return []
        started: list[StartedTrial] = []
        while len(started) < size and (families := self._families()):
            self.book.study.sampler = _sampler(self.seed + len(known) + len(started))
            trial = self.book.study.ask()
            plan = _chosen(trial, families)
            started.append(self._start(trial, plan, "neighbour", self.predict(plan)))
        return started

    def _families(self) -> list[list[DraftPlan | None]]:
        """For each of the best plans its neighbours, with None in the place of those that are known."""
        known = self.book.evidence()
        families = []
        for parent in ranked(known.values())[:NUM_PARENTS]:
            family = [plan if plan_key(plan) not in known else None for plan in self.neighbours(parent.plan)]
            if any(plan is not None for plan in family):
                families.append(family)
        return families

    def _start(self, trial: optuna.Trial, plan: DraftPlan, origin: Origin, predicted: float | None) -> StartedTrial:
        self.book.start(trial, plan, origin=origin, predicted=predicted)
        return StartedTrial(plan, trial)


def _sampler(seed: int) -> optuna.samplers.BaseSampler:
    # Seeds of a text have 64 bits, numpy's have 32.
    return optuna.samplers.TPESampler(seed=seed % 2**32, n_startup_trials=_STARTUP_TRIALS, multivariate=False)


def _fixed(params: dict[str, float]) -> optuna.samplers.BaseSampler:
    """Gives a trial that is taken up again the parameters that it had, for the sampler to learn from."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.PartialFixedSampler(params, optuna.samplers.RandomSampler())


def _suggest(trial: optuna.Trial) -> tuple[int, float]:
    return int(trial.suggest_int("parent", 0, NUM_PARENTS - 1)), float(trial.suggest_float("step", 0.0, 1.0))


def _chosen(trial: optuna.Trial, families: list[list[DraftPlan | None]]) -> DraftPlan:
    parent, step = _suggest(trial)
    family = families[parent % len(families)]
    first = min(int(step * len(family)), len(family) - 1)
    return next(plan for plan in [*family[first:], *family[:first]] if plan is not None)
