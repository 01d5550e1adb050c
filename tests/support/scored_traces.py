"""Traces and states of tiny models, for the tests of what looks at traces."""

from __future__ import annotations

from functools import cache

from tests.support.tiny_models import prompt_ids, tiny_target

from selfspec_calibrate.trace import Trace, record_trace
from selfspec_calibrate.trace_state import TraceState, compute_states
from selfspec_runtime.engine import Engine
from selfspec_runtime.generation import GREEDY, GenerationSettings
from selfspec_runtime.sampling import SamplingSettings
from selfspec_runtime.target import Target

NUM_TOKENS = 9


def plain_traces(
    target: Target, *, num_traces: int = 2, sampling: SamplingSettings = GREEDY, prompt_length: int = 14
) -> list[Trace]:
    """Traces of random prompts, the second three tokens longer than the first, and so on."""
    engine, settings = Engine(target), GenerationSettings(max_new_tokens=NUM_TOKENS, sampling=sampling)
    prompts = [prompt_ids(prompt_length + 3 * seed, seed=seed) for seed in range(num_traces)]
    return [record_trace(engine, f"p{i}", f"k{i % 2}", ids, settings) for i, ids in enumerate(prompts)]


@cache
def tiny_states(family: str, *, num_traces: int = 2, sampling: SamplingSettings = GREEDY) -> tuple[TraceState, ...]:
    """States along the plain traces of a family's shared tiny model."""
    target = tiny_target(family)
    return tuple(compute_states(target, plain_traces(target, num_traces=num_traces, sampling=sampling), sampling))
