"""Budget: a first timing of the loaded model, and what the user's time affords at that pace."""

from __future__ import annotations

from dataclasses import asdict, replace
from time import perf_counter
from typing import TYPE_CHECKING

from selfspec_calibrate import events
from selfspec_calibrate.budget import VERDICT_RUNS, Allowance, Pace, plan_allowance

if TYPE_CHECKING:
    from selfspec_calibrate.prompt_set import PromptSet
    from selfspec_calibrate.session import Session
    from selfspec_calibrate.workspace import Workspace
    from selfspec_runtime.engine import Engine
    from selfspec_runtime.generation import GenerationSettings

PACE_TOKENS = 16
_FILE = "allowance.json"


def afford(
    session: Session, workspace: Workspace, listener: events.Listener, *, verdict_runs: float = VERDICT_RUNS
) -> Allowance:
    """Finds out what the budget affords, and cuts the session's prompts and generations to it.

    A resumed calibration keeps what its first run afforded: a machine that is busier today must not change what
    is measured.

    Args:
        session: The loaded model.
        workspace: Keeps what was decided.
        listener: Hears of it.
        verdict_runs: Generations per held-out prompt, in units of a plain one.
    """
    known = workspace.read_json(_FILE)
    allowance = Allowance(**known) if known is not None else _planned(session, verdict_runs)
    workspace.write_json(_FILE, asdict(allowance))
    session.prompts = session.prompts.cut(num_search=allowance.num_search, num_held_out=allowance.num_held_out)
    session.generation = replace(session.generation, max_new_tokens=allowance.max_new_tokens)
    listener(events.Noted(allowance.describe()))
    return allowance


def _planned(session: Session, verdict_runs: float) -> Allowance:
    settings = session.settings
    return plan_allowance(
        measure_pace(session.engine(), session.prompts, session.generation),
        budget_s=settings.budget_s,
        num_search=len(session.prompts.search),
        num_held_out=len(session.prompts.held_out),
        max_new_tokens=settings.max_new_tokens,
        num_samplings=len(session.verdict_generations),
        verdict_runs=verdict_runs,
    )


def measure_pace(engine: Engine, prompts: PromptSet, generation: GenerationSettings) -> Pace:
    """Times plain decoding once, after a warm-up, on a prompt of middling length."""
    lengths = sorted(prompts.search, key=lambda prompt: len(prompt.token_ids))
    prompt = list(lengths[len(lengths) // 2].token_ids)
    settings = replace(generation, eos_token_ids=(), max_new_tokens=PACE_TOKENS)
    engine.generate(prompt, settings)
    started = perf_counter()
    seconds = engine.generate(prompt, settings).seconds
    total = perf_counter() - started
    return Pace(token_s=max(total - seconds.prefill, 1e-6) / (PACE_TOKENS - 1), prefill_s=seconds.prefill)
