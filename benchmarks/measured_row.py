"""Measures one row, in a process of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import memory
from benchmarks.bandwidth import measure_bandwidth
from benchmarks.contenders import (
    OWN_PLAIN,
    OWN_PLAN,
    Contender,
    engine_of,
    own_plain,
    own_plan,
    stock_contenders,
)
from benchmarks.contest import Outcome, compete, summary
from benchmarks.llama import llama_contender
from benchmarks.rounds import RoundParts, round_parts
from benchmarks.steps import is_exact, pass_costs

from selfspec_calibrate.pair import speedup_interval
from selfspec_runtime.engine import Engine
from selfspec_runtime.generation import GenerationSettings
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


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """Everyone who decodes a row, their weights in memory.

    Attributes:
        contenders: The baseline first.
        plain: Plain decoding of this runtime.
        prompts: What is decoded.
        settings: How.
        read: Bytes of weights that a plain step reads, by holder.
        peaks: Most bytes held, by contender.
        loading_peak: Most bytes held while this runtime loaded the model, and before.
        base: Bytes that the process held before it loaded anything.
    """

    contenders: Sequence[Contender]
    plain: Engine
    prompts: Sequence[MeasuredPrompt]
    settings: GenerationSettings
    read: dict[str, int | None]
    peaks: dict[str, int]
    loading_peak: int | None
    base: int | None


def measure_row(
    row: Row, scale: Scale, *, gguf: Path | None, threads: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Everything about a row.

    Args:
        row: What to load.
        scale: How much to measure.
        gguf: The demo model's GGUF file, or None.
        threads: Threads for llama.cpp.
        say: Hears of progress.
    """
    bandwidth = measure_bandwidth(scale.bandwidth_bytes)
    say("loading, and peak memory")
    there = gather(row, scale, gguf=gguf, threads=threads)
    drafting = engine_of(there.contenders[-1])
    say("timing single passes")
    parts = None if drafting is None else round_parts(drafting, positions=scale.contexts[0], passes=scale.passes)
    say("decoding")
    outcomes = compete(there.contenders, there.prompts, there.settings, repeats=scale.repeats, say=say)
    say("timing passes of several rows")
    return {
        "title": row.title,
        "model": {**row.spec.model_dump(), "model": Path(row.spec.model).name},
        "plan": row.plan.model_dump(),
        "acceptance": row.acceptance,
        "num_prompts": len(there.prompts),
        "tokens": row.tokens,
        "repeats": scale.repeats,
        "bandwidth": bandwidth.as_json(),
        "read_bytes": there.read,
        "memory": there.peaks,
        "base_bytes": there.base,
        "loading_peak_bytes": there.loading_peak,
        "contenders": _summaries(outcomes, there.read, bandwidth.bytes_per_s, is_scripted=row.acceptance is not None),
        "passes": pass_costs(there.plain.target, contexts=scale.contexts, passes=scale.passes),
        "is_exact": is_exact(there.plain.target, scale.contexts[0]),
        **_own(outcomes, parts),
    }


def gather(row: Row, scale: Scale, *, gguf: Path | None, threads: int) -> Gathered:
    """Loads everyone, this runtime first, and notes what each holds while it decodes."""
    base = memory.held_bytes()
    memory.reset_peak()
    own = row.load(packed=True)
    loading_peak = memory.peak_bytes()
    prompts, settings = row.measured_prompts(own), settings_of(row, own)
    plain = own_plain(own)
    peaks = memory.peaks([plain], prompts[0], settings, others=0)
    plan = own_plan(plain, row)
    peaks |= memory.peaks([plan], prompts[0], settings, others=0)
    own_held, before = memory.growth(base), memory.held_bytes()
    stock = row.load(packed=False).model
    read = {"own": read_bytes(own.model), "transformers": read_bytes(stock), "llama": _size(gguf)}
    capacity = max(len(prompt.token_ids) for prompt in prompts) + row.tokens + 1
    theirs = stock_contenders(stock, row, capacity=capacity, compile_limit_s=scale.compile_limit_s)
    peaks |= memory.peaks(theirs, prompts[0], settings, others=own_held)
    stock_held = memory.growth(before)
    llama = llama_contender(gguf, row, threads=threads, capacity=CAPACITY)
    peaks |= memory.peaks([llama], prompts[0], settings, others=own_held + stock_held)
    engine = engine_of(plain)
    assert engine is not None, "plain decoding has an engine"
    return Gathered(
        contenders=[*theirs, llama, plain, plan],
        plain=engine,
        prompts=prompts,
        settings=settings,
        read=read,
        peaks=peaks,
        loading_peak=loading_peak,
        base=base,
    )


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


def _summaries(
    outcomes: Sequence[Outcome], read: dict[str, int | None], bytes_per_s: float, *, is_scripted: bool
) -> list[dict[str, Any]]:
    own = None if is_scripted else next((each for each in outcomes if each.contender.name == OWN_PLAIN), None)
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
