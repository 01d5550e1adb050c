"""Measures one row, in a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks import memory
from benchmarks.bandwidth import measure_bandwidth
from benchmarks.contenders import (
    OWN_PLAIN,
    OWN_PLAN,
    Contender,
    draft_engine,
    llama_contender,
    own_contenders,
    stock_contenders,
)
from benchmarks.contest import Outcome, compete, summary
from benchmarks.rounds import RoundParts, round_parts
from benchmarks.steps import is_exact, pass_costs

from selfspec_calibrate.pair import speedup_interval
from selfspec_runtime.engine import GenerationSettings
from selfspec_runtime.generation_defaults import resolve_generation_defaults
from selfspec_runtime.memory import weight_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from benchmarks.rows import Row
    from benchmarks.scale import Scale
    from transformers import PreTrainedModel

    from selfspec_calibrate.measurement import MeasuredPrompt
    from selfspec_runtime.loading import LoadedModel

CAPACITY = 1024


def measure_row(
    row: Row, scale: Scale, *, gguf: Path | None, threads: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Everything about a row but its peak memory.

    Args:
        row: What to load.
        scale: How much to measure.
        gguf: The demo model's GGUF file, or None.
        threads: Threads for llama.cpp.
        say: Hears of progress.
    """
    bandwidth = measure_bandwidth(scale.bandwidth_bytes)
    say("loading")
    stock, own = row.load(packed=False), row.load(packed=True)
    prompts, settings = row.measured_prompts(own, scale.prompts), settings_of(row, own)
    capacity = max(len(prompt.token_ids) for prompt in prompts) + row.tokens + 1
    read = {"transformers": read_bytes(stock.model), "own": read_bytes(own.model), "llama": _size(gguf)}
    mine = own_contenders(own, row)
    contenders = [
        *stock_contenders(stock.model, row, capacity=capacity, compile_limit_s=scale.compile_limit_s),
        llama_contender(gguf, row, threads=threads, capacity=CAPACITY),
        *mine,
    ]
    plain, drafting = draft_engine(mine, OWN_PLAIN), draft_engine(mine)
    assert plain is not None, "plain decoding always has an engine"
    say("timing single passes")
    parts = None if drafting is None else round_parts(drafting, positions=scale.contexts[0], passes=scale.passes)
    say("decoding")
    outcomes = compete(contenders, prompts, settings, repeats=scale.repeats, say=say)
    say("timing passes of several rows")
    return {
        "title": row.title,
        "model": row.spec.model_dump(),
        "plan": row.plan.model_dump(),
        "acceptance": row.acceptance,
        "num_prompts": len(prompts),
        "tokens": row.tokens,
        "repeats": scale.repeats,
        "bandwidth": bandwidth.as_json(),
        "read_bytes": read,
        "contenders": _summaries(outcomes, read, bandwidth.bytes_per_s),
        "passes": pass_costs(plain.target, contexts=scale.contexts, passes=scale.passes),
        "is_exact": is_exact(plain.target, scale.contexts[0]),
        **_own(outcomes, parts),
    }


def measure_memory(row: Row, holder: str, *, gguf: Path | None, threads: int) -> dict[str, Any]:
    """Peaks of the contenders of one holder of weights."""
    contenders, prompt, settings = _held(row, holder, gguf, threads)
    return memory.as_json(memory.peak_bytes(), memory.peaks(contenders, prompt, settings))


def settings_of(row: Row, loaded: LoadedModel) -> GenerationSettings:
    """Greedy, to the model's own end of text; with a scripted acceptance only the length ends it."""
    if row.acceptance is not None:
        return GenerationSettings(max_new_tokens=row.tokens, synthetic_acceptance=row.acceptance)
    ends = resolve_generation_defaults(loaded.model, loaded.tokenizer).eos_token_ids
    return GenerationSettings(max_new_tokens=row.tokens, eos_token_ids=ends)


def read_bytes(model: PreTrainedModel) -> int:
    """Weights that a plain step reads: all but the input embeddings, unless the head is tied to them."""
    embeddings, head = model.get_input_embeddings().weight, model.get_output_embeddings()
    tied = getattr(head, "weight", None) is not None and head.weight.data_ptr() == embeddings.data_ptr()
    return weight_bytes(model) - (0 if tied else embeddings.numel() * embeddings.element_size())


def _held(
    row: Row, holder: str, gguf: Path | None, threads: int
) -> tuple[Sequence[Contender], MeasuredPrompt, GenerationSettings]:
    loaded = row.load(packed=holder == "own") if holder != "llama" else None
    if loaded is None:
        tokenizer_only = _ids_without_a_model(row)
        contender = llama_contender(gguf, row, threads=threads, capacity=CAPACITY)
        return [contender], tokenizer_only, GenerationSettings(max_new_tokens=row.tokens)
    prompt = row.measured_prompts(loaded, 1)[0]
    if holder == "own":
        return own_contenders(loaded, row), prompt, settings_of(row, loaded)
    contenders = stock_contenders(loaded.model, row, capacity=CAPACITY, compile_limit_s=0.0)
    return contenders, prompt, settings_of(row, loaded)


def _ids_without_a_model(row: Row) -> MeasuredPrompt:
    from selfspec_calibrate.measurement import MeasuredPrompt
    from selfspec_runtime.preflight import preflight

    tokenizer = preflight(row.spec).tokenizer
    ids = tokenizer("Write a short story about a lighthouse keeper who finds a message in a bottle.")["input_ids"]
    return MeasuredPrompt("memory", "memory", tuple(ids))


def _summaries(outcomes: Sequence[Outcome], read: dict[str, int | None], bytes_per_s: float) -> list[dict[str, Any]]:
    own = next((each for each in outcomes if each.contender.name == OWN_PLAIN and each.runs), None)
    told = []
    for outcome in outcomes:
        each = summary(outcome, outcomes[0], own)
        held, speed = read[outcome.contender.holder], each.get("tokens_per_s")
        share = None if held is None or speed is None else held * speed / bytes_per_s
        told.append({**each, "share_of_limit": share})
    return told


def _own(outcomes: Sequence[Outcome], parts: RoundParts | None) -> dict[str, Any]:
    found = {each.contender.name: each for each in outcomes if each.runs}
    plain, plan = found.get(OWN_PLAIN), found.get(OWN_PLAN)
    both = None if plain is None or plan is None else speedup_interval(plan.pairs(plain))
    per_round = None if plan is None else plan.stats.mean_acceptance_length
    return {
        "host_share_plain": None if plain is None else plain.host_share,
        "host_share_plan": None if plan is None else plan.host_share,
        "over_own_plain": None if both is None else both.model_dump(),
        "round_parts": None if parts is None else parts.as_json(),
        "ideal": None if parts is None or per_round is None else parts.ideal(per_round),
    }


def _size(gguf: Path | None) -> int | None:
    return gguf.stat().st_size if gguf is not None and gguf.is_file() else None
