"""The calibration from end to end.

load → probe → prompts → traces → cost model → predicted study → timed study → verdict → file
"""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING

from selfspec_calibrate import events
from selfspec_calibrate.dry_run import DryRun, dry_run
from selfspec_calibrate.plan_parts import array_names
from selfspec_calibrate.search import Search, run_search
from selfspec_calibrate.session import Session, open_session
from selfspec_calibrate.verdict_phase import decide
from selfspec_calibrate.workspace import Workspace
from selfspec_runtime.calibration import Calibration, Evidence, MemoryStep, SamplingRecord, TimedPlan
from selfspec_runtime.calibration_store import save_calibration
from selfspec_runtime.machine import describe_machine
from selfspec_runtime.memory import choose_step, parse_memory

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec_calibrate.settings import CalibrationSettings
    from selfspec_runtime.sampling import SamplingSettings

__all__ = ["DryRun", "calibrate", "dry_run"]


def calibrate(settings: CalibrationSettings, listener: events.Listener = events.ignore) -> Calibration:
    """Finds the plan that really makes the model faster, and writes it with its evidence.

    Args:
        settings: What the user asked for.
        listener: Hears of progress and of what the user should know.

    Returns:
        The calibration, which was also written to ``settings.output``.

    Raises:
        SelfspecError: Something that the user can put right; the message says what.
        Interrupted: Ctrl-C; everything measured is saved, and the same command goes on from there.
    """
    limit = parse_memory(settings.max_extra_memory)
    session = open_session(settings)
    for notice in session.notices:
        listener(events.Noted(notice))
    with Workspace.open(settings, session.fingerprint, session.prompts.file.sha256, listener=listener) as workspace:
        search = run_search(session, workspace, listener)
        steps = decide(session, workspace, search, listener=listener)
        calibration = _calibration(session, steps, chosen=choose_step(steps, limit), evidence=_evidence(search))
        return save_calibration(settings.output, calibration, _used_arrays(steps, session.arrays))


def _calibration(session: Session, steps: tuple[MemoryStep, ...], *, chosen: int, evidence: Evidence) -> Calibration:
    return Calibration(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        selfspec_version=version("selfspec"),
        model=session.loaded.spec,
        fingerprint=session.fingerprint,
        machine=describe_machine(session.target.device),
        sampling=sampling_record(session.generation.sampling),
        max_new_tokens=session.generation.max_new_tokens,
        data=session.prompts.record(),
        steps=steps,
        chosen=chosen,
        evidence=evidence,
    )


def sampling_record(sampling: SamplingSettings) -> SamplingRecord:
    """The settings as a file says them."""
    return SamplingRecord(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        mode=sampling.mode,
    )


def _evidence(search: Search) -> Evidence:
    foreseen, timed = search.forecast, search.timed
    return Evidence(
        cost=search.costs,
        agreement_by_exit=foreseen.exits.raw,
        agreement_by_linear_exit=foreseen.exits.linear,
        attention_sensitivity=foreseen.sensitivity.attention,
        mlp_sensitivity=foreseen.sensitivity.mlp,
        num_predicted=foreseen.study.num_replayed,
        num_skip_sets=foreseen.study.num_skip_sets,
        num_trace_tokens=foreseen.study.num_trace_tokens,
        timed=timed,
        median_prediction_error=median_error(timed, num_prompts=max((each.num_prompts for each in timed), default=0)),
    )


def median_error(timed: tuple[TimedPlan, ...], *, num_prompts: int) -> float | None:
    """Median of |predicted - measured| / measured over plans that have both.

    Plans that were given up early were not measured on the prompts that the prediction is for.
    """
    errors = sorted(
        abs(entry.predicted_speedup - entry.measured_speedup) / entry.measured_speedup
        for entry in timed
        if entry.predicted_speedup is not None and not entry.plan.is_plain and entry.num_prompts == num_prompts
    )
    middle = len(errors) // 2
    if not errors:
        return None
    return errors[middle] if len(errors) % 2 else (errors[middle - 1] + errors[middle]) / 2


def _used_arrays(steps: tuple[MemoryStep, ...], arrays: dict[str, Tensor]) -> dict[str, Tensor]:
    """Only the arrays that a plan in the file names: the others would be dead weight."""
    names = {name for step in steps for name in array_names(step.plan)}
    return {name: arrays[name] for name in sorted(names)}
