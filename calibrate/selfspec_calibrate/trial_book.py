"""What an Optuna study knows about plans: each trial with its prompts, and all trials of a plan taken together."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

import optuna

from selfspec_calibrate.pair import PromptPair, speedup
from selfspec_calibrate.workspace import PROCESS_ATTRIBUTE, this_process
from selfspec_runtime.plan import DraftPlan

if TYPE_CHECKING:
    from collections.abc import Iterable

Origin = Literal["plain", "leader", "neighbour"]
Outcome = Literal["complete", "pruned", "failed", "unfinished"]

_STATE = optuna.trial.TrialState
_BEST_FIRST: tuple[Outcome, ...] = ("complete", "pruned", "failed", "unfinished")


@dataclass(frozen=True, kw_only=True)
class PlanEvidence:
    """All that was measured of one plan, in one trial or in several.

    Attributes:
        plan: The plan.
        origin: Why it was first tried.
        predicted: Its predicted speedup, or None.
        pairs: What was measured, by prompt; the runs of several trials are added up.
        outcome: The best outcome of its trials; "unfinished" ones were cut short and may be taken up again.
        reason: Why it failed, or an empty text.
        num_runs: How often a prompt was measured in blocks of its own.
        params: What Optuna's sampler chose for its first trial.
    """

    plan: DraftPlan
    origin: Origin
    predicted: float | None
    pairs: dict[str, PromptPair]
    outcome: Outcome
    reason: str
    num_runs: int
    params: dict[str, float]

    @property
    def speedup(self) -> float | None:
        """Over all its prompts; 1 for plain decoding, None if nothing was measured."""
        return 1.0 if self.plan.is_plain else speedup(self.pairs.values())

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing left to do for it."""
        return self.outcome != "unfinished"


class TrialBook:
    """Reads and writes the trials of a timed study.

    Args:
        study: The study. Its trials carry a plan and its pairs as attributes.
    """

    def __init__(self, study: optuna.Study) -> None:
        self.study = study

    def start(self, trial: optuna.Trial, plan: DraftPlan, *, origin: Origin, predicted: float | None) -> None:
        """Says what a new trial tries."""
        trial.set_user_attr(PROCESS_ATTRIBUTE, this_process())
        trial.set_user_attr("draft", plan.describe())
        trial.set_user_attr("origin", origin)
        trial.set_user_attr("predicted", predicted)
        # Last: a trial without a plan was killed before it began, and counts for nothing.
        trial.set_user_attr("plan", plan.model_dump(mode="json"))

    def record(self, trial: optuna.Trial, pairs: Iterable[PromptPair]) -> None:
        """Stores what a trial has measured so far."""
        trial.set_user_attr("pairs", [asdict(pair) for pair in pairs])

    def complete(self, trial: optuna.Trial, value: float) -> None:
        """Ends a trial that went through all prompts."""
        self.study.tell(trial, value)

    def prune(self, trial: optuna.Trial) -> None:
        """Ends a trial that cannot win."""
        self.study.tell(trial, state=_STATE.PRUNED)

    def fail(self, trial: optuna.Trial, reason: str) -> None:
        """Ends a trial whose plan cannot run; it is not tried again."""
        trial.set_user_attr("reason", reason)
        self.study.tell(trial, state=_STATE.FAIL)

    def abandon(self, trial: optuna.Trial) -> None:
        """Ends a trial that was cut short; its plan is taken up again when the study goes on."""
        self.study.tell(trial, state=_STATE.FAIL)

    def evidence(self) -> dict[str, PlanEvidence]:
        """What is known of each plan, by `plan_key`, in the order in which they were first tried."""
        trials: dict[str, list[optuna.trial.FrozenTrial]] = {}
        for trial in self.study.get_trials(deepcopy=False):
            if "plan" in trial.user_attrs:
                trials.setdefault(_key_of(trial), []).append(trial)
        return {key: _together(found) for key, found in trials.items()}


def plan_key(plan: DraftPlan) -> str:
    """Text that is equal for equal plans, in this process and in the next one."""
    return json.dumps(plan.model_dump(mode="json"), sort_keys=True)


def _key_of(trial: optuna.trial.FrozenTrial) -> str:
    return plan_key(DraftPlan.model_validate(trial.user_attrs["plan"]))


def _together(trials: list[optuna.trial.FrozenTrial]) -> PlanEvidence:
    outcomes = [_outcome(trial) for trial in trials]
    pairs: dict[str, PromptPair] = {}
    runs: Counter[str] = Counter()
    for pair in (PromptPair(**each) for trial in trials for each in trial.user_attrs.get("pairs", ())):
        known = pairs.get(pair.prompt_id)
        pairs[pair.prompt_id] = pair if known is None else known.plus(pair)
        runs[pair.prompt_id] += 1
    predictions = (trial.user_attrs.get("predicted") for trial in trials)
    return PlanEvidence(
        plan=DraftPlan.model_validate(trials[0].user_attrs["plan"]),
        origin=trials[0].user_attrs["origin"],
        predicted=next((each for each in predictions if each is not None), None),
        pairs=pairs,
        outcome=min(outcomes, key=_BEST_FIRST.index),
        reason=next((trial.user_attrs["reason"] for trial in trials if "reason" in trial.user_attrs), ""),
        num_runs=max(runs.values(), default=1),
        params=dict(trials[0].params),
    )


def _outcome(trial: optuna.trial.FrozenTrial) -> Outcome:
    if trial.state == _STATE.COMPLETE:
        return "complete"
    if trial.state == _STATE.PRUNED:
        return "pruned"
    return "failed" if "reason" in trial.user_attrs else "unfinished"
