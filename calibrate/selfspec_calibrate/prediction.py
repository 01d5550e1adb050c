"""Predicts a plan's speedup: its rounds, replayed over traces, at what they cost on this machine."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast, get_args

from selfspec_calibrate.plan_parts import LOOKUPS
from selfspec_calibrate.replay import ReplayedTrace, TraceReplayer
from selfspec_runtime.drafts.first_of import NgramFirstSpec, PassSpec
from selfspec_runtime.errors import UsageError
from selfspec_runtime.plan import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from selfspec_calibrate.cost_model import CostModel
    from selfspec_calibrate.scoring import TokenScores
    from selfspec_calibrate.trace import Trace
    from selfspec_runtime.drafts.registry import AnySourceSpec
    from selfspec_runtime.plan import DraftPlan

#: Sources that draft by passes of the model.
PASSES: tuple[type, ...] = get_args(get_args(PassSpec)[0])


@dataclass(frozen=True)
class Prediction:
    """What a plan is predicted to bring on the traces, after each generation's first token.

    Attributes:
        plan: The plan.
        speedup: Plain seconds over the plan's seconds, each summed over the traces.
        tokens_per_round: Tokens emitted over rounds, the target's own tokens included.
        acceptance_rate: Accepted over drafted tokens, or None if nothing was drafted.
        seconds_plain: Seconds that plain decoding takes.
        seconds_plan: Seconds that the plan takes.
    """

    plan: DraftPlan
    speedup: float
    tokens_per_round: float
    acceptance_rate: float | None
    seconds_plain: float
    seconds_plan: float


class DraftScores(Protocol):
    """Whatever knows how drafts by passes score on traces."""

    def scores(self, spec: AnySourceSpec) -> Sequence[TokenScores]:
        """One entry per trace, in their order."""


class Predictor:
    """Predicts plans on one set of traces; what plans have in common is computed once.

    Args:
        traces: Plain traces.
        scorer: Scores drafts by passes on the same traces, in the same order.
        cost: Seconds of passes on this machine.
        max_new_tokens: Length limit of the decoding to be predicted, or None for each trace's own length.

    Attributes:
        num_tokens: Tokens that the predictions rest on: all but each trace's first.

    Raises:
        UsageError: No trace goes beyond its first token, so that there is nothing to predict.
    """

    def __init__(
        self, traces: Sequence[Trace], scorer: DraftScores, cost: CostModel, *, max_new_tokens: int | None = None
    ) -> None:
        self._scorer = scorer
        self._cost = cost
        self._replayers = [TraceReplayer(trace, max_new_tokens=max_new_tokens) for trace in traces]
        self.num_tokens = sum(replayer.num_rows for replayer in self._replayers)
        if self.num_tokens == 0:
            message = (
                f"None of the {len(traces)} search prompts led to an answer of two tokens or more, so nothing can be "
                "predicted. Use prompts with longer answers, or a larger --max-new-tokens."
            )
            raise UsageError(message)
        self._seconds_plain = self._seconds(PLAIN, [replayer.replay(PLAIN) for replayer in self._replayers])

    def predict(self, plan: DraftPlan) -> Prediction:
        """Predicts one plan.

        Raises:
            PlanError: The model has not what the plan asks for.
        """
        replays = self._replays(plan)
        seconds = self._seconds(plan, replays)
        drafted = sum(replayed.num_draft_tokens for replayed in replays)
        accepted = sum(replayed.num_accepted_tokens for replayed in replays)
        return Prediction(
            plan=plan,
            speedup=self._seconds_plain / seconds,
            tokens_per_round=self.num_tokens / sum(replayed.num_rounds for replayed in replays),
            acceptance_rate=accepted / drafted if drafted else None,
            seconds_plain=self._seconds_plain,
            seconds_plan=seconds,
        )

    def best_of(self, plans: Iterable[DraftPlan]) -> Prediction:
        """Predicts several plans, and returns the fastest; the first of equals."""
        return max((self.predict(plan) for plan in plans), key=lambda prediction: prediction.speedup)

    def agreement(self, plan: DraftPlan) -> float | None:
        """Mean acceptance of the plan's passes over all rows; None if it drafts by no passes."""
        spec = pass_spec(plan)
        if spec is None:
            return None
        return sum(float(scores.accept.sum()) for scores in self._scorer.scores(spec)) / self.num_tokens

    def _replays(self, plan: DraftPlan) -> list[ReplayedTrace]:
        spec = pass_spec(plan)
        scores: Sequence[TokenScores | None]
        scores = [None] * len(self._replayers) if spec is None else self._scorer.scores(spec)
        return [replayer.replay(plan, own) for replayer, own in zip(self._replayers, scores, strict=True)]

    def _seconds(self, plan: DraftPlan, replays: Iterable[ReplayedTrace]) -> float:
        return sum(
            count * self._round_s(plan, drafts, round(context))
            for replayed in replays
            for drafts, (count, context) in _by_cost(replayed).items()
        )

    def _round_s(self, plan: DraftPlan, drafts: tuple[str, int], context: int) -> float:
        """Seconds of one round: its draft passes, the verification, the host's work."""
        origin, num_drafted = drafts
        cost, spec = self._cost, pass_spec(plan)
        if origin in LOOKUPS or spec is None:
            return cost.pass_s(num_drafted + 1, context) + cost.host_s
        if num_drafted == 0:
            return cost.pass_s(1, context) + cost.host_s
        # Draft pass i reads i positions more; the time grows about evenly with them.
        middle = context + (num_drafted - 1) // 2
        drafting_s = num_drafted * cost.draft_pass_s(spec, middle)
        return drafting_s + cost.verify_s(spec, num_drafted, context) + cost.host_s


def predict(plan: DraftPlan, traces: Sequence[Trace], scorer: DraftScores, cost: CostModel) -> Prediction:
    """Predicts one plan on traces; for many plans, keep a :class:`Predictor`.

    Raises:
        PlanError: The model has not what the plan asks for.
        UsageError: No trace goes beyond its first token.
    """
    return Predictor(traces, scorer, cost).predict(plan)


def pass_spec(plan: DraftPlan) -> PassSpec | None:
    """The part of a plan's source that drafts by passes of the model; None if there is none."""
    source = plan.source
    if isinstance(source, NgramFirstSpec):
        return source.then
    return cast("PassSpec", source) if isinstance(source, PASSES) else None


def _by_cost(replayed: ReplayedTrace) -> dict[tuple[str, int], tuple[float, float]]:
    """Count and mean context of the rounds that cost the same, by origin and number of draft tokens."""
    sums: defaultdict[tuple[str, int], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for kind, entry in replayed.rounds.items():
        total = sums[kind.origin, kind.num_drafted]
        total[0] += entry.count
        total[1] += entry.count * entry.context
    return {drafts: (count, weighted / count) for drafts, (count, weighted) in sums.items()}
