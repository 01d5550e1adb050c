"""The search that a calibration and a comparison have in common.

budget → traces → cost model → predicted study → timed study
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from selfspec_calibrate import events
from selfspec_calibrate.budget import VERDICT_RUNS
from selfspec_calibrate.budget_phase import afford
from selfspec_calibrate.cost_phase import cost_table
from selfspec_calibrate.predicted_phase import forecast
from selfspec_calibrate.timed_phase import time_plans
from selfspec_calibrate.trace_phase import recorded_traces
from selfspec_calibrate.world_phase import family_roster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selfspec_calibrate.budget import Allowance
    from selfspec_calibrate.predicted_phase import Forecast
    from selfspec_calibrate.roster import Roster
    from selfspec_calibrate.session import Session
    from selfspec_calibrate.workspace import Workspace
    from selfspec_runtime.calibration import CostTable, TimedPlan

MIN_TIMED_SHARE = 0.1
"""Share of the budget that the timed study gets even if the phases before it took longer than planned."""

_SECONDS = "common_seconds.json"


@dataclass(frozen=True, kw_only=True)
class Search:
    """What was found on search prompts.

    Attributes:
        allowance: What the budget affords.
        costs: Seconds of passes.
        forecast: What was predicted.
        roster: What was to be timed beside the predicted leaders, and what was left out.
        timed: Everything that was timed, best first.
        deadline: When the timed study had to end, in ``time.monotonic`` seconds.
        common_s: Seconds of what serves all families, those of interrupted runs included.
    """

    allowance: Allowance
    costs: CostTable
    forecast: Forecast
    roster: Roster
    timed: tuple[TimedPlan, ...]
    deadline: float
    common_s: float


def run_search(
    session: Session,
    workspace: Workspace,
    listener: events.Listener,
    *,
    verdict_runs: float = VERDICT_RUNS,
    every_family: bool = False,
) -> Search:
    """Searches.

    Args:
        session: The loaded model; its prompts are cut to what the budget affords.
        workspace: Keeps what is measured.
        listener: Hears of progress and of what the user should know.
        verdict_runs: Generations per held-out prompt that are to follow, in units of a plain one.
        every_family: Whether each family is to be timed, whatever its chances and the budget.

    Raises:
        SelfspecError: Something that the user can put right.
        Interrupted: Ctrl-C; everything measured is saved.
    """
    started = monotonic()
    with _counted(workspace):
        allowance = afford(session, workspace, listener, verdict_runs=verdict_runs)
        traces = recorded_traces(session, workspace, listener)
        costs = cost_table(session, workspace, traces, listener)
        foreseen = forecast(session, workspace, traces, costs, seconds=allowance.predicted_s, listener=listener)
    roster = family_roster(session, foreseen, everything=every_family)
    for notice in () if every_family else roster.unmet(session.settings.families):
        listener(events.Noted(notice))
    deadline = timing_deadline(started, session.settings.budget_s, allowance)
    timed = time_plans(
        session,
        workspace,
        foreseen,
        num_timed=allowance.num_timed,
        deadline=deadline,
        listener=listener,
        roster=roster,
        every_family=every_family,
    )
    return Search(
        allowance=allowance,
        costs=costs,
        forecast=foreseen,
        roster=roster,
        timed=timed,
        deadline=deadline,
        common_s=common_seconds(workspace),
    )


def timing_deadline(started: float, budget_s: float, allowance: Allowance) -> float:
    """When timing must end for the verdict to fit; a slow start does not leave it without any time at all."""
    planned = started + budget_s - allowance.verdict_s - allowance.finals_s
    return max(planned, monotonic() + MIN_TIMED_SHARE * budget_s)


def common_seconds(workspace: Workspace) -> float:
    """Seconds that the common phases have taken, over all runs up to the one that finished them."""
    known = workspace.read_json(_SECONDS)
    return 0.0 if known is None else float(known["seconds"])


@contextmanager
def _counted(workspace: Workspace) -> Iterator[None]:
    """Counts the body's seconds, also if it is interrupted; once it was finished, going over it again adds nothing."""
    known = workspace.read_json(_SECONDS) or {"seconds": 0.0, "is_finished": False}
    started, is_finished = monotonic(), False
    try:
        yield
        is_finished = True
    finally:
        if not known["is_finished"]:
            taken = {"seconds": known["seconds"] + monotonic() - started, "is_finished": is_finished}
            workspace.write_json(_SECONDS, taken)
