"""Verdict: the finalists measured again, and the chosen plans once on held-out prompts."""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from selfspec_calibrate import events
from selfspec_calibrate.block_store import BlockStore
from selfspec_calibrate.budget import VERDICT_SHARE
from selfspec_calibrate.divergence import divergence_margin
from selfspec_calibrate.head_to_head import HeadToHead
from selfspec_calibrate.held_out import HeldOut
from selfspec_calibrate.selection import Selected, Selection
from selfspec_calibrate.stock import StockArm
from selfspec_calibrate.stock_model import stock_model
from selfspec_calibrate.verdict import Verdict
from selfspec_runtime.memory import weight_bytes

if TYPE_CHECKING:
    from selfspec_calibrate.search import Search
    from selfspec_calibrate.session import Session
    from selfspec_calibrate.workspace import Workspace
    from selfspec_runtime.calibration import MemoryStep

NAME = "verdict"


def decide(
    session: Session,
    workspace: Workspace,
    search: Search,
    *,
    listener: events.Listener,
) -> tuple[MemoryStep, ...]:
    """Chooses a plan for each step of extra memory and measures it on prompts that the search has never seen.

    Args:
        session: The loaded model.
        workspace: Keeps the measurements.
        search: What was found on search prompts.
        listener: Hears of progress.
    """
    settings = session.verdict_generations
    listener(events.PhaseStarted(NAME, len(session.prompts.held_out) * len(settings), VERDICT_SHARE))
    selected = select_plans(session, workspace, search)
    model, notices = stock_model(session.loaded)
    for notice in notices:
        listener(events.Noted(notice))
    held_out = HeldOut(
        make_engine=session.engine,
        prompts=session.prompts.held_out,
        settings=settings,
        margin=partial(divergence_margin, session.target),
        stock=StockArm(model, session.loaded.tokenizer),
        seed=session.settings.seed,
        store=BlockStore(workspace, "verdict.json"),
        listener=listener,
    )
    return Verdict(held_out=held_out, weight_bytes=weight_bytes(session.loaded.model)).judge(selected)


def select_plans(session: Session, workspace: Workspace, search: Search) -> tuple[Selected, ...]:
    """Chooses a plan for each step of extra memory, by measuring the finalists anew on search prompts.

    Args:
        session: The loaded model.
        workspace: Keeps the measurements.
        search: What was timed; what was predicted tells how the prompts for which the time did not suffice differ, and
            time that the timed study left is added.
    """
    return Selection(
        make_engine=session.search_engine,
        head_to_head=HeadToHead(
            prompts=session.prompts.search,
            settings=session.generation,
            seed=session.settings.seed,
            deadline=max(monotonic(), search.deadline) + search.allowance.finals_s,
            store=BlockStore(workspace, "finalists.json"),
        ),
        weight_bytes=weight_bytes(session.loaded.model),
        num_timed=search.allowance.num_timed,
        foresee=search.forecast.speedup_on,
    ).select(search.timed)
