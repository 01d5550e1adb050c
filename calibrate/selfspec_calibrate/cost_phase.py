"""Cost model: what passes take on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from selfspec_calibrate import events
from selfspec_calibrate.budget import COST_SHARE
from selfspec_calibrate.cost_table import measure_costs
from selfspec_calibrate.interleave import OUT_OF_MEMORY
from selfspec_runtime.calibration import CostTable
from selfspec_runtime.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec_calibrate.session import Session
    from selfspec_calibrate.trace import Trace
    from selfspec_calibrate.workspace import Workspace

NAME = "costs"
REPEATS = 9
_FILE = "costs.json"


def cost_table(session: Session, workspace: Workspace, traces: Sequence[Trace], listener: events.Listener) -> CostTable:
    """Measures passes at context lengths that the traces have; a resumed calibration keeps its table."""
    listener(events.PhaseStarted(NAME, 1, COST_SHARE))
    known = workspace.read_json(_FILE)
    table = CostTable.model_validate(known) if known is not None else _measured(session, traces)
    workspace.write_json(_FILE, table.model_dump(mode="json"))
    listener(events.Progressed(NAME, 1))
    return table


def quantized_available(session: Session) -> bool:
    """Whether an NF4 copy is searched and can be made of this model, in the memory that there is."""
    if not {"quantized", "ngram_first"} & set(session.settings.families):
        return False
    try:
        return bool(session.target.quantized_layers.modules)
    except (PlanError, *OUT_OF_MEMORY):
        return False


def _measured(session: Session, traces: Sequence[Trace]) -> CostTable:
    return measure_costs(
        session.target,
        max_rows=session.settings.max_draft_tokens + 1,
        context_lengths=context_lengths(traces),
        with_quantized=quantized_available(session),
        repeats=REPEATS,
        sampling=session.generation.sampling,
    )


def context_lengths(traces: Sequence[Trace]) -> tuple[int, ...]:
    """The shortest prompt and the longest text of the traces: between the two everything is decoded."""
    shortest = min(len(trace.prompt_ids) for trace in traces)
    longest = max(len(trace.input_ids) for trace in traces)
    return (shortest, longest) if longest > shortest else (shortest,)
