"""Measures what passes cost on this machine: the time T(M, n) of M rows behind n positions, and its parts."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import torch

from selfspec_calibrate.timing import Timer, timer_for
from selfspec_runtime.calibration import CostTable
from selfspec_runtime.engine import GREEDY, Engine, GenerationSettings
from selfspec_runtime.law import argmax_tokens, token_probs
from selfspec_runtime.layer_skip import LayerSkipSet

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
    rows = [_rows_and_attention(each, timer, max_rows=max_rows) for each in passes]
    parts = _parts(passes[0], timer, with_quantized=with_quantized)
    attention = tuple(max(full[0] - without, 0.0) / target.num_layers for full, without in rows)
    layer_s = (parts.full_s - parts.head_s) / target.num_layers
    mlp_s = layer_s - attention[0] if parts.no_mlp_s is None else (parts.full_s - parts.no_mlp_s) / target.num_layers
    return CostTable(
        context_lengths=contexts,
        pass_s=tuple(full for full, _ in rows),
        attention_s=attention,
        mlp_s=max(mlp_s, 0.0),
        head_s=parts.head_s,
        host_s=max(_host_s(target, sampling) - parts.read_s, 0.0),
        quantized_pass_s=parts.quantized_s,
        quantized_head_s=parts.quantized_head_s,
    )


@dataclass(frozen=True)
class _Parts:
    """Seconds of one-row passes with something left out, at one context length."""

    full_s: float
    head_s: float
    read_s: float
    no_mlp_s: float | None
    quantized_s: float | None
    quantized_head_s: float | None


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

    def task(self, rows: int, program: LayerProgram | None = None) -> Callable[[], object]:
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


def _rows_and_attention(passes: _Passes, timer: Timer, *, max_rows: int) -> tuple[tuple[float, ...], float]:
    """Seconds of 1 to ``max_rows`` rows, and of one row without any attention."""
    tasks = [passes.task(rows) for rows in range(1, max_rows + 1)]
    *full, no_attention = timer([*tasks, passes.task(1, passes.without(["attention"]))])
    return tuple(full), no_attention


def _parts(passes: _Passes, timer: Timer, *, with_quantized: bool) -> _Parts:
    target = passes.target
    logits = target.logits(passes.ids[:1], passes.cache, start=passes.context)
    tasks: dict[str, Callable[[], object]] = {
        "full": passes.task(1),
        "head": passes.task(1, passes.without(["attention", "mlp"])),
        "read": lambda: passes.read(logits),
    }
    if target.parts.mlp_name is not None:
        tasks["no_mlp"] = passes.task(1, passes.without(["mlp"]))
    if with_quantized:
        tasks |= _quantized_tasks(passes)
    seconds = dict(zip(tasks, timer(list(tasks.values())), strict=True))
    return _Parts(
        full_s=seconds["full"],
        head_s=min(seconds["head"], seconds["full"]),
        read_s=seconds["read"],
        no_mlp_s=seconds.get("no_mlp"),
        quantized_s=seconds.get("quantized"),
        quantized_head_s=seconds.get("quantized_head"),
    )


def _quantized_tasks(passes: _Passes) -> dict[str, Callable[[], object]]:
    target = passes.target
    copy = target.programs.without(LayerSkipSet(), layers=target.quantized_layers.modules)
    tasks = {"quantized": passes.task(1, copy)}
    if target.quantized_head.modules:
        nothing = LayerSkipSet.model_validate({role: list(range(target.num_layers)) for role in ("attention", "mlp")})
        head = target.programs.without(nothing, head=target.quantized_head.modules[0])
        tasks["quantized_head"] = passes.task(1, head)
    return tasks


def _host_s(target: Target, sampling: SamplingSettings) -> float:
    """Seconds of a plain round outside of its pass, as the decoder records them."""
    settings = GenerationSettings(max_new_tokens=HOST_ROUNDS + 1, sampling=sampling)
    steps = list(Engine(target).stream([0], settings))
    return median(step.host_s for step in steps[1:]) if len(steps) > 1 else 0.0
