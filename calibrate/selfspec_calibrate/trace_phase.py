"""Traces: each search prompt decoded plainly once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from selfspec_calibrate import events
from selfspec_calibrate.budget import TRACE_SHARE
from selfspec_calibrate.trace import Trace, load_traces, record_trace, save_traces

if TYPE_CHECKING:
    from selfspec_calibrate.session import Session
    from selfspec_calibrate.workspace import Workspace

NAME = "traces"


def recorded_traces(session: Session, workspace: Workspace, listener: events.Listener) -> list[Trace]:
    """One trace per search prompt; those of an interrupted calibration are not recorded again."""
    path = workspace.path("traces.safetensors")
    known = {trace.prompt_id: trace for trace in load_traces(path)} if path.exists() else {}
    prompts = session.prompts.search
    listener(events.PhaseStarted(NAME, len(prompts), TRACE_SHARE))
    engine = session.engine()
    for done, prompt in enumerate(prompts, start=1):
        if prompt.prompt_id not in known:
            known[prompt.prompt_id] = record_trace(
                engine, prompt.prompt_id, prompt.kind, prompt.token_ids, session.generation
            )
            save_traces(path, list(known.values()))
        listener(events.Progressed(NAME, done, prompt.kind))
    return [known[prompt.prompt_id] for prompt in prompts]
