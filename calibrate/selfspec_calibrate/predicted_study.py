"""The predicted study: hundreds of plans, judged by traces and measured costs alone.

A trial is a source. Scoring its passes is what takes time; once it is scored, replaying it under another controller
costs next to nothing, so every trial tries all controllers of the space, and its value is the best of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from selfspec_calibrate import events
from selfspec_calibrate.plan_params import enqueue, suggest_plan
from selfspec_calibrate.prediction import Prediction, Predictor, pass_spec
from selfspec_calibrate.prediction_book import PredictionBook, ScoredSource, open_study
from selfspec_calibrate.skip_surrogate import DraftShares, SkipSurrogate
from selfspec_calibrate.source_queue import SourceQueue
from selfspec_calibrate.trace import middle_context
from selfspec_runtime.drafts.skipped import LayerSkipSpec
from selfspec_runtime.layer_skip import LayerSkipSet
from selfspec_runtime.plan import DraftPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import optuna

    from selfspec_calibrate.cost_model import CostModel
    from selfspec_calibrate.scoring import Scorer
    from selfspec_calibrate.search_space import SearchSpace
    from selfspec_calibrate.settings import Family
    from selfspec_calibrate.source_queue import Candidate
    from selfspec_calibrate.trace import Trace

#: Name of the phase in progress events.
NAME = "predicted"

#: Draft tokens of the verification that skip sets are compared at.
TYPICAL_DRAFT = 4


@dataclass(frozen=True)
class PredictedStudy:
    """What was predicted.

    Attributes:
        plans: For each source the prediction of its fastest plan, best first.
        num_replayed: Plans replayed, over all sources and controllers.
        num_skip_sets: Distinct skip sets among them.
        num_trace_tokens: Trace tokens that each prediction rests on.
    """

    plans: tuple[Prediction, ...]
    num_replayed: int
    num_skip_sets: int
    num_trace_tokens: int


def run_predicted_study(
    space: SearchSpace,
    traces: Sequence[Trace],
    scorer: Scorer,
    cost: CostModel,
    *,
    storage: str | optuna.storages.BaseStorage | None,
    study_name: str,
    num_plans: int,
    seed: int,
    listener: events.Listener = events.ignore,
    deadline: float | None = None,
    max_new_tokens: int | None = None,
    clock: Callable[[], float] = monotonic,
) -> PredictedStudy:
    """Searches the space, going on where an earlier run of the same study ended.

    Args:
        space: The plans to choose from.
        traces: Plain traces of search prompts.
        scorer: Scores drafts by passes on the same traces, in the same order.
        cost: Seconds of passes on this machine.
        storage: Optuna's storage, or None to keep nothing.
        study_name: Name in it; it must stand for model, prompts, settings and space.
        num_plans: Sources to predict, each with its best controller, those of earlier runs included; fewer where
            the space has fewer.
        seed: Of all draws.
        listener: Hears of every plan.
        deadline: Time of ``clock`` after which nothing is begun, once each family has had a plan; None for no limit.
        max_new_tokens: Length limit of the decoding to be predicted, or None for each trace's own length.
        clock: Gives seconds.

    Raises:
        UsageError: The traces hold nothing to predict from, or the name is taken by another kind of study.
    """
    predictor = Predictor(traces, scorer, cost, max_new_tokens=max_new_tokens)
    book = PredictionBook(None if storage is None else open_study(storage, study_name), seed=seed)
    surrogate = _surrogate(space, draft_shares(cost, space.num_layers, context=middle_context(traces)))
    search = _Search(space, predictor, book, SourceQueue(space, book.known, surrogate=surrogate, seed=seed))
    while len(book.known) < num_plans:
        if deadline is not None and clock() >= deadline and search.covers_families:
            break
        if not search.step(listener):
            break
    return _result(book, predictor)


@dataclass(frozen=True)
class _Search:
    """The parts of a running study."""

    space: SearchSpace
    predictor: Predictor
    book: PredictionBook
    queue: SourceQueue

    @property
    def covers_families(self) -> bool:
        """Whether each searched family has a plan."""
        return set(self.space.searched) <= {source.kind for source in self.book.known}

    def step(self, listener: events.Listener) -> bool:
        """Runs one trial; False if there is nothing left to try."""
        candidate = self.queue.next()
        if candidate is None:
            return False
        trial, plan = self._start(candidate)
        assert plan.source is not None, "plain decoding is not searched"
        is_new = plan.source not in self.book.known
        self.queue.tell(candidate.family, is_new=is_new)
        if is_new:
            self.book.record(trial, self._scored(plan, plan.source.kind))
        else:
            self.book.repeat(trial, plan.source)
        listener(events.Progressed(NAME, len(self.book.known), plan.describe(), self.book.best))
        return True

    def _start(self, candidate: Candidate) -> tuple[optuna.Trial, DraftPlan]:
        if candidate.plan is None:
            self.book.study.enqueue_trial({"family": candidate.family})
        else:
            enqueue(self.book.study, candidate.plan, self.space)
        trial = self.book.study.ask()
        return trial, suggest_plan(trial, self.space)

    def _scored(self, plan: DraftPlan, family: Family) -> ScoredSource:
        controllers = dict.fromkeys([plan.controller, *self.space.controllers(family)])
        plans = [DraftPlan(source=plan.source, controller=controller) for controller in controllers]
        return ScoredSource(self.predictor.best_of(plans), self.predictor.agreement(plan), len(plans))


def draft_shares(cost: CostModel, num_layers: int, *, context: int) -> DraftShares:
    """What skipping saves, as shares of a plain step.

    Args:
        cost: Seconds of passes.
        num_layers: The model's layers.
        context: Positions in the cache.
    """

    def skipping_s(skip: LayerSkipSet) -> float:
        return cost.draft_pass_s(LayerSkipSpec(skip=skip), context)

    plain_s = cost.pass_s(1, context) + cost.host_s
    full_s, layers = skipping_s(LayerSkipSet()), frozenset(range(num_layers))
    attention_s = (full_s - skipping_s(LayerSkipSet(attention=layers))) / num_layers
    mlp_s = (full_s - skipping_s(LayerSkipSet(mlp=layers))) / num_layers
    verify_s = cost.pass_s(TYPICAL_DRAFT + 1, context) + cost.host_s
    return DraftShares(full_s / plain_s, attention_s / plain_s, mlp_s / plain_s, verify_s / plain_s)


def _surrogate(space: SearchSpace, shares: DraftShares) -> SkipSurrogate | None:
    if space.ranking is None or "layer_skip" not in space.searched:
        return None
    drafts = space.max_draft_tokens
    return SkipSurrogate(space.ranking, shares, max_skipped=space.max_skipped, max_draft_tokens=drafts)


def _result(book: PredictionBook, predictor: Predictor) -> PredictedStudy:
    scored = list(book.known.values())
    plans = sorted((each.best for each in scored), key=lambda prediction: prediction.speedup, reverse=True)
    skips = {getattr(pass_spec(prediction.plan), "skip", LayerSkipSet()) for prediction in plans}
    return PredictedStudy(
        plans=tuple(plans),
        num_replayed=sum(each.num_plans for each in scored),
        num_skip_sets=len(skips - {LayerSkipSet()}),
        num_trace_tokens=predictor.num_tokens,
    )
