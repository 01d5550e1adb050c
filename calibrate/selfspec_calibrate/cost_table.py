"""Measures what passes cost on this machine: the time T(M, n) of M rows behind n positions, and its parts."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import torch

from selfspec_calibrate.timing import Task, Timer, timer_for
from selfspec_runtime.calibration import CostTable
from selfspec_runtime.engine import Engine
from selfspec_runtime.generation import GREEDY, GenerationSettings
from selfspec_runtime.law import argmax_tokens, token_probs
from selfspec_runtime.layer_skip import LayerSkipSet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from selfspec_runtime.cache import KVCache
    from selfspec_runtime.program import LayerProgram
    from selfspec_runtime.sampling import SamplingSettings
    from selfspec_runtime.target import Target

HOST_ROUNDS = 16
MIN_TOTAL_S = 0.25


def measure_costs(
    target: Target,
    *,
    max_rows: int,
    context_lengths: Sequence[int],
    with_quantized: bool,
    repeats: int,
    sampling: SamplingSettings = GREEDY,
    timer: Timer | None = None,
) -> CostTable:
    """Times passes; rows are measured one by one, since kernels have tile edges that no formula knows.

    A pass is timed with what is read off it: the likeliest tokens, or the laws under sampling. ``head_s`` is a
    pass without layers: embedding, masks, final norm, head and reading, which every draft pass pays. Where the
    MLP is no module of its own, what is left of a layer beside its attention counts as MLP.

    Args:
        target: The model.
        max_rows: Most rows of a pass: the longest draft and one.
        context_lengths: Positions in the cache; cut to what the model's context allows.
        with_quantized: Whether to make and time the NF4 copy (it takes memory).
        repeats: Fewest runs of each pass; the median counts.
        sampling: How tokens are chosen.
        timer: Times tasks; by default interleaved, warmed up, on the target's device.

    Returns:
        The table; context lengths in ascending order.

    Raises:
        PlanError: The weights have no NF4 copy (they are quantised already).
        CapacityError: The model's context does not even hold ``max_rows``.
    """
    timer = timer or timer_for(target.device, repeats=repeats, min_total_s=MIN_TOTAL_S)
    contexts = _usable(target, context_lengths, max_rows)
    passes = [_Passes(target, context, max_rows, sampling) for context in contexts]
    tasks = {name: task for each in passes for name, task in _context_tasks(each, max_rows).items()}
    tasks |= _part_tasks(passes[0]) | (_quantized_tasks(passes[0]) if with_quantized else {})
    # All in one call, so that the machine's drift meets every part alike: parts are differences.
    seconds = dict(zip(tasks, timer(list(tasks.values())), strict=True))
    return _table(contexts, seconds, target.num_layers, host_s=_host_s(target, sampling))


def _table(contexts: tuple[int, ...], seconds: Mapping[str, float], num_layers: int, *, host_s: float) -> CostTable:
    rows = [tuple(s for name, s in seconds.items() if name.startswith(f"{n}+")) for n in contexts]
    one_row = [measured[0] for measured in rows]
    attention = [
        (full - seconds[f"{n} without attention"]) / num_layers for n, full in zip(contexts, one_row, strict=True)
    ]
    head_s = min(seconds["head"], one_row[0])
    without_mlp = seconds.get("without mlp", head_s + num_layers * attention[0])
    return CostTable(
        context_lengths=contexts,
        pass_s=tuple(rows),
        attention_s=tuple(max(s, 0.0) for s in attention),
        mlp_s=max(one_row[0] - without_mlp, 0.0) / num_layers,
        head_s=head_s,
        host_s=max(host_s - seconds["read"], 0.0),
        quantized_pass_s=seconds.get("quantized"),
        quantized_head_s=seconds.get("quantized head"),
    )


class _Passes:
    """Makes passes behind a given number of positions into tasks to time."""

    def __init__(self, target: Target, context: int, max_rows: int, sampling: SamplingSettings) -> None:
        self.target = target
        self.context = context
        generator = torch.Generator().manual_seed(context)
        vocab = target.model.get_input_embeddings().weight.shape[0]
        self.ids = torch.randint(vocab, (max_rows,), generator=generator).to(target.device)
        self.cache = _filled_cache(target, context, self.ids)
        self.sampling = sampling

    def task(self, rows: int, program: LayerProgram | None = None) -> Task:
        ids = self.ids[:rows]
        return lambda: self.read(self.target.logits(ids, self.cache, start=self.context, program=program))

    def read(self, logits: Tensor) -> object:
        """What a round reads off a pass, waiting for it."""
        if self.sampling.greedy:
            return argmax_tokens(logits).tolist()
        return token_probs(logits, self.sampling)[:, 0].tolist()

    def without(self, roles: Sequence[str]) -> LayerProgram:
        everything = list(range(self.target.num_layers))
        return self.target.programs.without(LayerSkipSet.model_validate(dict.fromkeys(roles, everything)))


def _usable(target: Target, context_lengths: Sequence[int], max_rows: int) -> tuple[int, ...]:
    limit = target.max_positions
    longest = max(limit - max_rows, 0) if limit is not None else max(context_lengths)
    return tuple(sorted({min(context, longest) for context in context_lengths}))


def _filled_cache(target: Target, context: int, ids: Tensor) -> KVCache:
    """A cache whose pages are really there: reading untouched zeros would be faster than reading keys."""
    cache = target.new_cache(capacity=context + len(ids))
    target.logits(ids, cache, start=context)
    cache.length = context
    for index in range(target.num_layers):
        for held in cache.layer(index):
            held.normal_()
    cache.length = 0
    return cache


def _context_tasks(passes: _Passes, max_rows: int) -> dict[str, Task]:
    """Full passes of 1 to ``max_rows`` rows, in order, and one row without any attention."""
    tasks = {f"{passes.context}+{rows}": passes.task(rows) for rows in range(1, max_rows + 1)}
    return tasks | {f"{passes.context} without attention": passes.task(1, passes.without(["attention"]))}


def _part_tasks(passes: _Passes) -> dict[str, Task]:
    target = passes.target
    logits = target.logits(passes.ids[:1], passes.cache, start=passes.context)
    tasks: dict[str, Task] = {
        "head": passes.task(1, passes.without(["attention", "mlp"])),
        "read": lambda: passes.read(logits),
    }
    if target.parts.mlp_name is not None:
        tasks["without mlp"] = passes.task(1, passes.without(["mlp"]))
    return tasks


def _quantized_tasks(passes: _Passes) -> dict[str, Task]:
    target = passes.target
    copy = target.programs.without(LayerSkipSet(), layers=target.quantized_layers.modules)
    tasks = {"quantized": passes.task(1, copy)}
    if target.quantized_head.modules:
        nothing = LayerSkipSet.model_validate({role: list(range(target.num_layers)) for role in ("attention", "mlp")})
        head = target.programs.without(nothing, head=target.quantized_head.modules[0])
        tasks["quantized head"] = passes.task(1, head)
    return tasks


def _host_s(target: Target, sampling: SamplingSettings) -> float:
    """Seconds of a plain round outside of its pass, as the decoder records them."""
    settings = GenerationSettings(max_new_tokens=HOST_ROUNDS + 1, sampling=sampling)
    steps = list(Engine(target).stream([0], settings))
    return median(step.host_s for step in steps[1:]) if len(steps) > 1 else 0.0
