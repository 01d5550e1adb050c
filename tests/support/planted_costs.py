"""Costs and scores that are known, so that predictions and searches have a right answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from selfspec_calibrate.scoring import TokenScores
from selfspec_calibrate.trace import Trace
from selfspec_runtime.drafts.early_exit import EarlyExitSpec
from selfspec_runtime.drafts.first_of import PassSpec
from selfspec_runtime.drafts.quantized import QuantizedSpec


@dataclass(frozen=True)
class PlantedCosts:
    """A cost model in units of a plain step at context 0 (1.0), of which the head takes ``head``."""

    num_layers: int
    head: float = 0.2
    attention_share: float = 0.4
    quantized: float = 0.35
    host_s: float = 0.02
    row_s: float = 0.0
    context_s: float = 0.0

    @property
    def attention_s(self) -> float:
        return (1.0 - self.head) * self.attention_share / self.num_layers

    @property
    def mlp_s(self) -> float:
        return (1.0 - self.head) * (1.0 - self.attention_share) / self.num_layers

    def pass_s(self, rows: int, context: int) -> float:
        return 1.0 + self.row_s * (rows - 1) + self.context_s * context

    def draft_pass_s(self, spec: PassSpec, context: int) -> float:
        if isinstance(spec, EarlyExitSpec):
            share = self.head + (1.0 - self.head) * spec.exit_layer / self.num_layers
        else:
            share = 1.0 - len(spec.skip.attention) * self.attention_s - len(spec.skip.mlp) * self.mlp_s
        if isinstance(spec, QuantizedSpec):
            share = self.quantized * share + (0.0 if spec.quantize_head else self.head * (1 - self.quantized))
        return share + self.context_s * context

    def prefix_s(self, spec: PassSpec, context: int) -> float:
        return 0.0

    def verify_s(self, spec: PassSpec, num_drafted: int, context: int) -> float:
        return self.pass_s(num_drafted + 1, context)


@dataclass
class PlantedScorer:
    """Scores by a function from a draft to its chance of acceptance, the same at every row."""

    traces: Sequence[Trace]
    chance: Callable[[PassSpec], float]
    num_scored: int = 0

    def scores(self, spec: PassSpec) -> tuple[TokenScores, ...]:
        self.num_scored += 1
        chance = self.chance(spec)
        return tuple(
            TokenScores(np.full(n, chance), np.full(n, chance))
            for n in (len(trace.output_ids) - 1 for trace in self.traces)
        )


def planted_traces(num_traces: int, num_tokens: int, *, prompt_length: int = 5) -> list[Trace]:
    """Traces in which no token occurs twice, so that lookups find nothing."""
    return [
        Trace(str(n), "test", tuple(range(prompt_length)), tuple(range(100, 100 + num_tokens)))
        for n in range(num_traces)
    ]
