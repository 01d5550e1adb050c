"""Engines whose rounds are recorded and replayed on a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.plans import exit_heads
from tests.support.replay_recorder import ReplayRecorder

from selfspec_runtime.engine import Engine
from selfspec_runtime.executors.cuda_graph import GraphExecutor
from selfspec_runtime.plan import PLAIN, DraftPlan

if TYPE_CHECKING:
    from selfspec_runtime.executors.recorder import Recorder
    from selfspec_runtime.target import Target


def replay_engine(
    target: Target, plan: DraftPlan = PLAIN, *, recorder: Recorder | None = None
) -> tuple[Engine, GraphExecutor]:
    """An engine and its executor."""
    engine = Engine(target, plan=plan, arrays=exit_heads())
    executor = GraphExecutor(
        target,
        engine.source,
        engine.decoder.controller,
        recorder=recorder or ReplayRecorder(),
        max_drafts=plan.max_draft_tokens,
    )
    engine.decoder.executor = executor
    return engine, executor


def draft_plan(source: dict[str, Any], num_draft_tokens: int) -> DraftPlan:
    """A plan of fixed length."""
    controller = {"kind": "fixed", "num_draft_tokens": num_draft_tokens}
    return DraftPlan.model_validate({"source": source, "controller": controller})
