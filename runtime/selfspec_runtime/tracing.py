"""Records a trace: decodes as always, then reads every layer in one pass over what was said."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np

from selfspec_runtime.decoder import Decoder, RunRecord
from selfspec_runtime.draft_watch import WatchedSource
from selfspec_runtime.drafts.early_exit import EarlyExitSpec
from selfspec_runtime.errors import UsageError
from selfspec_runtime.layer_readings import read_layers
from selfspec_runtime.token_pieces import TokenPieces
from selfspec_runtime.token_trace import TokenTrace
from selfspec_runtime.trace_round import TraceRound

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from selfspec_runtime.engine import Engine
    from selfspec_runtime.generation import GenerationSettings
    from selfspec_runtime.plan import DraftPlan
    from selfspec_runtime.step import SpeculativeStep


def trace_generation(
    engine: Engine,
    prompt_ids: Sequence[int],
    settings: GenerationSettings,
    *,
    top_k: int = 3,
    on_step: Callable[[SpeculativeStep], None] | None = None,
) -> TokenTrace:
    """Generates with an engine's plan and records how every token came about.

    The tokens are those that the engine generates by itself; the engine is not changed.

    Args:
        engine: The engine.
        prompt_ids: At least one token id.
        settings: How to generate.
        top_k: Candidates kept per layer and token, at least 1.
        on_step: Told of every round as it comes, for text that streams.

    Raises:
        UsageError: The prompt is empty, or ``top_k`` is not positive.
        CapacityError: The prompt fills the context.
        NumericalError: The model's logits are not numbers.
    """
    if top_k < 1:
        message = f"top_k is {top_k}; ask for at least 1 candidate."
        raise UsageError(message)
    record = RunRecord()
    steps, draft_probs = _decode(engine, list(prompt_ids), settings, record, on_step)
    output_ids = [token for step in steps for token in step.token_ids]
    rounds = _rounds(steps, draft_probs)
    questioned = {each.start + each.num_accepted: each.rejected_ids[0] for each in rounds if each.was_corrected}
    readings = read_layers(engine.target, prompt_ids, output_ids, questioned=questioned, top_k=top_k)
    finish = steps[-1].finish_reason
    assert finish is not None
    return TokenTrace(
        prompt_ids=tuple(prompt_ids),
        token_ids=np.array(output_ids, dtype=np.int32),
        pieces=_pieces(engine, output_ids, rounds, readings.top_ids),
        rounds=_questioned(rounds, readings.questioned_probs),
        layers_agree=readings.layers_agree,
        top_ids=readings.top_ids,
        top_probs=readings.top_probs,
        target_probs=readings.target_probs,
        text="".join(step.text for step in steps),
        finish_reason=finish,
        plan=engine.plan.describe(),
        exit_layer=exit_layer_of(engine.plan),
        num_draft_passes=record.stats.num_draft_passes,
    )


def exit_layer_of(plan: DraftPlan) -> int | None:
    """Layers that a plan's early exit runs, also one within another source; None if it has none."""
    sources = () if plan.source is None else plan.source.parts()
    return next((source.exit_layer for source in sources if isinstance(source, EarlyExitSpec)), None)


def _decode(
    engine: Engine,
    prompt_ids: list[int],
    settings: GenerationSettings,
    record: RunRecord,
    on_step: Callable[[SpeculativeStep], None] | None,
) -> tuple[list[SpeculativeStep], list[tuple[float | None, ...]]]:
    watched, watcher = _watched(engine)
    steps, probs = [], []
    for step in watched.stream(prompt_ids, settings, record=record):
        steps.append(step)
        if on_step is not None:
            on_step(step)
        probs.append(watcher.probs if watcher is not None and step.num_drafted else (None,) * step.num_drafted)
    return steps, probs


def _watched(engine: Engine) -> tuple[Engine, WatchedSource | None]:
    """An engine that shares everything with the given one but listens to its source."""
    if engine.source is None:
        return engine, None
    watcher, watched = WatchedSource(engine.source), copy.copy(engine)
    watched.decoder = Decoder(engine.target, watcher, engine.decoder.controller)
    return watched, watcher


def _rounds(steps: list[SpeculativeStep], draft_probs: list[tuple[float | None, ...]]) -> list[TraceRound]:
    rounds, start = [], 0
    for step, probs in zip(steps, draft_probs, strict=True):
        rounds.append(
            TraceRound(
                start=start,
                num_tokens=len(step.token_ids),
                drafted_ids=step.drafted_ids,
                draft_probs=probs,
                num_accepted=step.num_accepted,
                origin=step.origin,
                exit_depth=step.exit_depth,
                draft_s=step.draft_s,
                verify_s=step.verify_s,
                host_s=step.host_s,
                branch_places=step.branch_places,
                accepted_branch=step.accepted_branch,
            )
        )
        start += len(step.token_ids)
    return rounds


def _questioned(rounds: list[TraceRound], probs: Mapping[int, float]) -> tuple[TraceRound, ...]:
    """The rounds with the target's probability of what it rejected."""
    return tuple(
        each.model_copy(update={"rejected_target_prob": probs.get(each.start + each.num_accepted)})
        if each.was_corrected
        else each
        for each in rounds
    )


def _pieces(
    engine: Engine, output_ids: Sequence[int], rounds: Sequence[TraceRound], top_ids: NDArray[np.int32]
) -> dict[int, str]:
    drafted = {token for each in rounds for token in each.drafted_ids}
    ids = sorted({*output_ids, *drafted, *np.unique(top_ids).tolist()})
    pieces = TokenPieces(engine.tokenizer)
    return {token: pieces(token) for token in ids}
