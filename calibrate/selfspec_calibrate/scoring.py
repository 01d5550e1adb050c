"""Scores drafts on traces without decoding: how often each would have been accepted, row by row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from selfspec_calibrate.folds import fold_arrays, folds
from selfspec_runtime.drafts.passes import PassSource
from selfspec_runtime.errors import PlanError
from selfspec_runtime.heap import return_freed_memory
from selfspec_runtime.program import LayerProgram

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from selfspec_calibrate.trace_state import TraceState
    from selfspec_runtime.drafts.registry import AnySourceSpec
    from selfspec_runtime.sampling import SamplingSettings
    from selfspec_runtime.target import Target

CHUNK = 64
"""Rows whose logits are read in float32 at once."""


@dataclass(frozen=True)
class TokenScores:
    """A draft's scores at the scored rows of one trace.

    Attributes:
        accept: float32 ``[n]``, the probability that the token which the draft proposes at the row is accepted.
        confidence: float32 ``[n]``, the largest probability of the draft's unprocessed law.
    """

    accept: NDArray[np.float32]
    confidence: NDArray[np.float32]


class Scorer:
    """Scores draft sources at depth 1, against the target's own keys and values for everything earlier.

    Deeper drafts attend to a few keys and values of the draft's own as well; their agreement is 0 to 2 points
    lower for quantised copies and for small skip sets.

    Args:
        target: The model.
        states: Its states along the traces.
        sampling: How tokens are chosen; the same as the states were computed with.
        arrays: Fitted arrays. Where they hold a fold's exit head, each trace is scored with the head that was
            fitted without it.
    """

    def __init__(
        self, target: Target, states: Sequence[TraceState], sampling: SamplingSettings, arrays: Mapping[str, Tensor]
    ) -> None:
        self.target = target
        self.states = tuple(states)
        self.sampling = sampling
        self.arrays = arrays
        self._folds = folds([state.trace for state in states])
        self._scores: dict[AnySourceSpec, tuple[TokenScores, ...]] = {}

    @property
    def num_rows(self) -> int:
        """Scored rows over all traces."""
        return sum(state.num_rows for state in self.states)

    def scores(self, spec: AnySourceSpec) -> tuple[TokenScores, ...]:
        """Scores a source; the same spec is scored once.

        Args:
            spec: An early exit, a skip set or a quantised copy.

        Returns:
            One entry per trace.

        Raises:
            PlanError: The model has not what the spec asks for, or the source runs no passes of the model.
        """
        if spec not in self._scores:
            programs = {fold: self._program(spec, fold) for fold in set(self._folds)}
            self._scores[spec] = tuple(
                self._score(state, programs[fold]) for state, fold in zip(self.states, self._folds, strict=True)
            )
            return_freed_memory()
        return self._scores[spec]

    def agreement(self, spec: AnySourceSpec) -> float:
        """Mean acceptance over all scored rows.

        Raises:
            PlanError: As for :meth:`scores`.
        """
        accepted = [scores.accept for scores in self.scores(spec)]
        return float(np.concatenate(accepted).mean()) if self.num_rows else 0.0

    def _program(self, spec: AnySourceSpec, fold: int) -> LayerProgram:
        source = spec.build(self.target, fold_arrays(self.arrays, fold))
        if not isinstance(source, PassSource):
            message = f"'{spec.describe()}' is not scored on traces: it is replayed from the tokens alone."
            raise PlanError(message)
        return source.program

    def _score(self, state: TraceState, program: LayerProgram) -> TokenScores:
        if not state.num_rows:
            return TokenScores(np.zeros(0, np.float32), np.zeros(0, np.float32))
        logits = block_logits(self.target, state, program)
        confidence = torch.cat([_confidence(rows) for rows in torch.split(logits, CHUNK)])
        accept = state.law.acceptance(state.processed(logits), self.sampling, warpers=state.processors.warpers)
        return TokenScores(accept.float().cpu().numpy(), confidence.cpu().numpy())


def block_logits(target: Target, state: TraceState, program: LayerProgram) -> Tensor:
    """A draft's logits at every scored row, each row as the first of a round.

    Layers before the first one that the program changes are not run: their outputs are the target's own.

    Args:
        target: The model.
        state: Its state along a trace with at least one scored row.
        program: The draft's program.

    Returns:
        ``[n, vocab]`` in the model's dtype.
    """
    cache = state.cache
    mask = cache.mask(target.parts, dtype=target.dtype, device=target.device)
    resumed = _resumed(target, state, program)
    return target.logits(state.token_ids, cache, start=cache.start, program=resumed, mask=mask)


def _resumed(target: Target, state: TraceState, program: LayerProgram) -> LayerProgram:
    exact = _exact_prefix(target, program)
    if exact == 0:
        return program
    start, into = target.programs.resume_at(exact)
    into.hidden = state.hidden[exact - 1]
    return LayerProgram((*start.modules[:exact], *program.modules[exact:]), program.head)


def _exact_prefix(target: Target, program: LayerProgram) -> int:
    """How many of the first layers the program runs as they are."""
    same = [own is module for own, module in zip(target.full.modules, program.modules, strict=True)]
    return same.index(False) if False in same else len(same)


def _confidence(logits: Tensor) -> Tensor:
    wide = logits.float()
    return (wide.amax(dim=1) - wide.logsumexp(dim=1)).exp().nan_to_num(0.0)
