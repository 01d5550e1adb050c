"""What an Optuna study knows about sources: each with the best plan that was found for it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import optuna

from selfspec_calibrate.prediction import Prediction
from selfspec_runtime.errors import UsageError
from selfspec_runtime.plan import DraftPlan

if TYPE_CHECKING:
    from selfspec_runtime.drafts.registry import AnySourceSpec

_STATE = optuna.trial.TrialState
_ATTRIBUTE = "prediction"


@dataclass(frozen=True)
class ScoredSource:
    """A source, scored once and replayed under several controllers.

    Attributes:
        best: Prediction of the fastest plan.
        agreement: Mean acceptance over the scored rows; None for a lookup, which is replayed only.
        num_plans: Plans that were replayed, one for each controller.
    """

    best: Prediction
    agreement: float | None
    num_plans: int

    @property
    def source(self) -> AnySourceSpec:
        """The source."""
        assert self.best.plan.source is not None, "plain decoding is not searched"
        return self.best.plan.source


class PredictionBook:
    """Reads and writes the trials of a predicted study.

    Trials run in memory, where a sampler reads them fastest, and each is copied into the storage when it has ended:
    one write instead of a dozen, and nothing is left running there by a process that is killed.

    Args:
        stored: The study in the storage, see :func:`open_study`; None to keep nothing.
        seed: Of the sampler; a study that goes on draws other numbers than those it has drawn.

    Attributes:
        study: The study in memory, earlier trials included.
        known: What was scored, in this run and in earlier ones, in order.
    """

    def __init__(self, stored: optuna.Study | None, *, seed: int) -> None:
        earlier = stored.get_trials(deepcopy=False, states=(_STATE.COMPLETE,)) if stored is not None else []
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._stored = stored
        self.study = optuna.create_study(direction="maximize", sampler=_sampler(seed + len(earlier)))
        self.study.add_trials(earlier)
        self.known: dict[AnySourceSpec, ScoredSource] = {}
        for trial in earlier:
            if _ATTRIBUTE in trial.user_attrs:
                scored = _read(trial.user_attrs[_ATTRIBUTE])
                self.known.setdefault(scored.source, scored)

    @property
    def best(self) -> float | None:
        """The highest predicted speedup, or None before the first."""
        return max((scored.best.speedup for scored in self.known.values()), default=None)

    def record(self, trial: optuna.Trial, scored: ScoredSource) -> None:
        """Ends a trial with what was found."""
        trial.set_user_attr(_ATTRIBUTE, _written(scored))
        self._end(trial, scored.best.speedup)
        self.known[scored.source] = scored

    def repeat(self, trial: optuna.Trial, source: AnySourceSpec) -> None:
        """Ends a trial whose source is known, with the known value: the sampler learns, nothing is scored again."""
        self._end(trial, self.known[source].best.speedup)

    def _end(self, trial: optuna.Trial, value: float) -> None:
        ended = self.study.tell(trial, value)
        if self._stored is not None:
            self._stored.add_trial(ended)


def open_study(storage: str | optuna.storages.BaseStorage, name: str) -> optuna.Study:
    """Creates a study of predictions in a storage, or opens it as it was left.

    Args:
        storage: Optuna's storage.
        name: Of the study; it must stand for model, prompts, settings and space.

    Raises:
        UsageError: The storage holds a study of that name that is not of predictions.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(storage=storage, study_name=name, direction="maximize", load_if_exists=True)
    if study.direction != optuna.study.StudyDirection.MAXIMIZE:
        message = f"The study {name} in this storage minimises, so it is not one of predictions. Add --restart."
        raise UsageError(message)
    for trial in study.get_trials(deepcopy=False, states=(_STATE.RUNNING,)):
        study.tell(trial.number, state=_STATE.FAIL)
    return study


def _sampler(seed: int) -> optuna.samplers.BaseSampler:
    with warnings.catch_warnings():
        # Grouping is marked experimental; without it a sampler treats families of plans as unrelated numbers.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # Seeds of a text have 64 bits, numpy's have 32.
        return optuna.samplers.TPESampler(seed=seed % 2**32, multivariate=True, group=True)


def _written(scored: ScoredSource) -> dict[str, Any]:
    numbers = {name: value for name, value in vars(scored.best).items() if name != "plan"}
    plan = scored.best.plan.model_dump(mode="json")
    return {"plan": plan, **numbers, "agreement": scored.agreement, "num_plans": scored.num_plans}


def _read(written: dict[str, Any]) -> ScoredSource:
    numbers = dict(written)
    agreement, num_plans = numbers.pop("agreement"), numbers.pop("num_plans")
    plan = DraftPlan.model_validate(numbers.pop("plan"))
    return ScoredSource(Prediction(plan=plan, **numbers), agreement, num_plans)
