"""Timed study: the leaders of each step of extra memory, and their neighbours, decode for real."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from selfspec_calibrate import events
from selfspec_calibrate.draft_families import in_turns, num_families
from selfspec_calibrate.interleave import OUT_OF_MEMORY
from selfspec_calibrate.leaders import STEPS, PlanMemory, leaders
from selfspec_calibrate.neighbours import neighbours
from selfspec_calibrate.plan_parts import is_replayed
from selfspec_calibrate.timed_study import TimedStudy
from selfspec_runtime.drafts.early_exit import exit_head_name, fitted_exits
from selfspec_runtime.errors import PlanError
from selfspec_runtime.families import text_config
from selfspec_runtime.memory import StepName, weight_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from selfspec_calibrate.predicted_phase import Forecast
    from selfspec_calibrate.prediction import Predictor
    from selfspec_calibrate.roster import Roster
    from selfspec_calibrate.search_space import SearchSpace
    from selfspec_calibrate.session import Session
    from selfspec_calibrate.workspace import Workspace
    from selfspec_runtime.calibration import TimedPlan
    from selfspec_runtime.plan import DraftPlan

NAME = "timed"
TIMED_SHARE = 0.08

#: Share of the seconds left that the zero step gets; what it leaves is the next step's.
ZERO_STEP_PART = 0.55


def time_plans(
    session: Session,
    workspace: Workspace,
    forecast: Forecast,
    *,
    num_timed: int,
    deadline: float,
    listener: events.Listener,
    roster: Roster,
    every_family: bool = False,
) -> tuple[TimedPlan, ...]:
    """Times plans, one study per step of extra memory.

    A common study would prune the plans of the smaller step for losing against the larger one's.

    Args:
        session: The loaded model.
        workspace: Where the studies are kept.
        forecast: The predictions; those set beside measurements are for the very prompts that are timed.
        num_timed: How many of the search prompts to time on.
        deadline: When to stop, in ``time.monotonic`` seconds.
        listener: Hears of progress.
        roster: Plans to time beside the predicted leaders.
        every_family: Whether one plan of each family is timed even where the time is up.

    Returns:
        Plain decoding and all timed plans of all steps, best first.
    """
    listener(events.PhaseStarted(NAME, session.settings.max_trials, TIMED_SHARE))
    memory = plan_memory(session)
    prompts = session.prompts.search[:num_timed]
    predictor = forecast.predictor_of(num_timed)
    candidates = _candidates(forecast, memory, roster)
    if every_family:
        candidates = {step: in_turns(plans) for step, plans in candidates.items()}
    found: list[TimedPlan] = []
    num_settled = 0
    steps = [step for step in STEPS if step in candidates]
    counts = [num_families(candidates[step]) for step in steps]
    for place, step in enumerate(steps):
        left = max(deadline - monotonic(), 0.0)
        part = ZERO_STEP_PART if step == "zero" and len(candidates) > 1 else 1.0
        num_left = trials_left(session.settings.max_trials, num_settled, families=counts[place:])
        study = TimedStudy(
            workspace=workspace,
            make_engine=session.search_engine,
            prompts=prompts,
            settings=session.generation,
            leaders=[(plan, _speedup(predictor, plan)) for plan in candidates[step]],
            neighbours=partial(_neighbours_within, step, memory, forecast.space),
            predict=partial(_speedup, predictor),
            name=f"{NAME}-{step}",
            deadline=monotonic() + part * left,
            at_least=counts[place] if every_family else 0,
            max_trials=num_left,
            seed=session.settings.seed,
            listener=counting_on(listener, num_settled),
        )
        found += [each.model_copy(update={"step": step}) for each in study.run()]
        num_settled += study.num_settled
    return _merged(found, num_prompts=len(prompts))


def trials_left(max_trials: int | None, num_settled: int, *, families: Sequence[int]) -> int | None:
    """How many plans a step may time, so that all steps together keep to what the user asked for.

    Args:
        max_trials: For all steps, or None for no limit.
        num_settled: Plans that earlier steps have timed.
        families: Numbers of families in the step and in those after it: each family counts as much as another, and no
            step goes without where that can be.
    """
    if max_trials is None:
        return None
    left = max(max_trials - num_settled, 0)
    most = max(left - len(families[1:]), min(left, 1))
    return min(max(round(left * families[0] / sum(families)), 1), most)


def counting_on(listener: events.Listener, num_done: int) -> events.Listener:
    """A listener that hears progress after what was done before, so that a bar does not jump back.

    Args:
        listener: Hears of it.
        num_done: Units done before.
    """

    def hear(event: events.Event) -> None:
        listener(replace(event, done=event.done + num_done) if isinstance(event, events.Progressed) else event)

    return hear


def _candidates(forecast: Forecast, memory: PlanMemory, roster: Roster) -> dict[StepName, list[DraftPlan]]:
    """For each step the predicted leaders, best first, and then the roster's plans."""
    found: dict[StepName, list[DraftPlan]] = {
        step: [each.plan for each in picked] for step, picked in leaders(forecast.study, memory).items()
    }
    for plan in roster.plans:
        found.setdefault(memory.step(plan), []).append(plan)
    return found


def _speedup(predictor: Predictor, plan: DraftPlan) -> float | None:
    return predictor.predict(plan).speedup if is_replayed(plan) else None


def _merged(found: Sequence[TimedPlan], *, num_prompts: int) -> tuple[TimedPlan, ...]:
    """The steps' results as one list, best first; plain decoding, which is in each of them, once."""
    once = {timed.plan.model_dump_json(): timed for timed in found}
    order = sorted(once.values(), key=lambda each: (each.num_prompts >= num_prompts, each.measured_speedup))
    return tuple(reversed(order))


def plan_memory(session: Session) -> PlanMemory:
    """What each kind of plan would hold beyond the model; the copies are there since the cost model timed them."""
    target = session.target
    names = {exit_head_name(layer) for layer in fitted_exits(session.arrays)}
    heads = (array for name, array in session.arrays.items() if name in names)
    head_bytes = max((array.numel() * target.dtype.itemsize for array in heads), default=0)
    return PlanMemory(
        weight_bytes=weight_bytes(session.loaded.model),
        exit_head_bytes=head_bytes,
        head_row_bytes=int(text_config(session.loaded.model.config).hidden_size) * target.dtype.itemsize,
        quantized_bytes=_held(lambda: target.quantized_layers.num_bytes),
        quantized_head_bytes=_held(lambda: target.quantized_head.num_bytes),
    )


def _held(copied_bytes: Callable[[], int]) -> int:
    try:
        return copied_bytes()
    except (PlanError, *OUT_OF_MEMORY):
        return 0


def _neighbours_within(step: StepName, memory: PlanMemory, space: SearchSpace, plan: DraftPlan) -> list[DraftPlan]:
    return [other for other in neighbours(plan, space) if memory.step(other) == step]
