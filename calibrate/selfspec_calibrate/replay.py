"""Replays a plan's rounds over a trace, without decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg import solve_banded

from selfspec_calibrate.lookup_rows import LookupRows, ngram_rows, suffix_rows
from selfspec_calibrate.plan_parts import LOOKUPS
from selfspec_calibrate.proposers import (
    FirstOfProposer,
    LookupProposer,
    PassProposer,
    Proposals,
    Proposer,
    plain_proposals,
)
from selfspec_runtime.drafts.first_of import NgramFirstSpec
from selfspec_runtime.drafts.ngram import NgramSpec
from selfspec_runtime.drafts.suffix import SuffixSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from selfspec_calibrate.scoring import TokenScores
    from selfspec_calibrate.trace import Trace

    Floats = NDArray[np.float64]
    from selfspec_runtime.controllers.controller import Controller
    from selfspec_runtime.drafts.registry import AnySourceSpec
    from selfspec_runtime.plan import DraftPlan

#: Kinds of round expected less often than this are left out.
NEGLIGIBLE = 1e-9


@dataclass(frozen=True)
class RoundKind:
    """Rounds that cost the same and bring the same.

    Attributes:
        origin: Kind of the source that drafted, "none" for a plain step.
        num_drafted: Draft tokens.
        num_accepted: Draft tokens that were committed.
    """

    origin: str
    num_drafted: int
    num_accepted: int


@dataclass(frozen=True)
class RoundCount:
    """How often a kind of round occurs.

    Attributes:
        count: Expected number of rounds; whole on a greedy trace.
        context: Mean number of positions in the cache when these rounds start.
    """

    count: float
    context: float


@dataclass(frozen=True)
class ReplayedTrace:
    """A trace's rounds under a plan. Counts add up over traces; rates are to be derived from sums.

    Attributes:
        rounds: Expected occurrences of each kind of round.
        num_emitted_tokens: Tokens after the first one, which the prompt's own pass gives.
    """

    rounds: dict[RoundKind, RoundCount]
    num_emitted_tokens: int

    @property
    def num_rounds(self) -> float:
        """Verification passes, plain steps included."""
        return sum(entry.count for entry in self.rounds.values())

    @property
    def num_drafts(self) -> float:
        """Rounds that drafted."""
        return sum(entry.count for kind, entry in self.rounds.items() if kind.num_drafted)

    @property
    def num_draft_tokens(self) -> float:
        """Tokens drafted."""
        return sum(entry.count * kind.num_drafted for kind, entry in self.rounds.items())

    @property
    def num_accepted_tokens(self) -> float:
        """Draft tokens committed."""
        return sum(entry.count * kind.num_accepted for kind, entry in self.rounds.items())

    @property
    def num_draft_passes(self) -> float:
        """Passes of the draft: one per token, and none for a lookup."""
        return sum(entry.count * kind.num_drafted for kind, entry in self.rounds.items() if kind.origin not in LOOKUPS)


class TraceReplayer:
    """Replays plans over one trace.

    A round's draft depends on the row where it starts and on nothing before, so the expected number of rounds that
    start at each row follows from the rows before it: an exact sum over all courses that decoding can take, for
    greedy traces (one course) and sampled ones alike. A controller must be one whose decisions do not depend
    on earlier rounds.

    Args:
        trace: Tokens of a prompt and of plain decoding.
        max_new_tokens: The length limit of the decoding to be predicted, or None for the trace's own length. It
            matters for a trace that ended early: decoding cannot know that and drafts past its end.
    """

    def __init__(self, trace: Trace, *, max_new_tokens: int | None = None) -> None:
        self.trace = trace
        self.num_rows = max(len(trace.output_ids) - 1, 0)
        limit = len(trace.output_ids) if max_new_tokens is None else max_new_tokens
        self._room = np.maximum(limit - np.arange(self.num_rows) - 2, 0)
        self._lookups: dict[NgramSpec | SuffixSpec, LookupRows] = {}

    def replay(self, plan: DraftPlan, scores: TokenScores | None = None) -> ReplayedTrace:
        """Counts the rounds of a plan.

        Args:
            plan: What drafts, and how far.
            scores: Scores of the plan's passes on this trace, ``[T]`` each; None if it drafts by no passes.
        """
        if self.num_rows == 0:
            return ReplayedTrace({}, 0)
        proposals = self._proposals(plan, scores)
        outcomes = _outcomes(proposals)
        expected = _expected_starts(outcomes)[:, None] * outcomes
        return ReplayedTrace(_counts(proposals, expected, len(self.trace.prompt_ids)), self.num_rows)

    def _proposals(self, plan: DraftPlan, scores: TokenScores | None) -> Proposals:
        if plan.source is None:
            return plain_proposals(self.num_rows)
        controller = plan.controller.build()
        budget = np.minimum(controller.budget(), self._room)
        return self._proposer(plan.source, controller, scores).propose(budget=budget, room=self._room)

    def _proposer(self, spec: AnySourceSpec, controller: Controller, scores: TokenScores | None) -> Proposer:
        if isinstance(spec, NgramSpec | SuffixSpec):
            return LookupProposer(self._lookup_rows(spec), limit=spec.num_draft_tokens, origin=spec.kind)
        if isinstance(spec, NgramFirstSpec):
            first, then = (self._proposer(part, controller, scores) for part in (spec.ngram, spec.then))
            return FirstOfProposer(first, then)
        assert scores is not None, f"{spec.describe()} drafts by passes, which need scores"
        return PassProposer(scores, controller, origin=spec.kind)

    def _lookup_rows(self, spec: NgramSpec | SuffixSpec) -> LookupRows:
        unlimited = spec.model_copy(update={"num_draft_tokens": None})
        if unlimited not in self._lookups:
            self._lookups[unlimited] = _looked_up(self.trace, unlimited)
        return self._lookups[unlimited]


def replay(plan: DraftPlan, trace: Trace, scores: TokenScores | None = None) -> ReplayedTrace:
    """Counts a plan's rounds on one trace; see :meth:`TraceReplayer.replay`."""
    return TraceReplayer(trace).replay(plan, scores)


def _looked_up(trace: Trace, spec: NgramSpec | SuffixSpec) -> LookupRows:
    if isinstance(spec, NgramSpec):
        return ngram_rows(trace, spec.min_match, spec.max_match)
    assert not spec.corpus, "a trace is not looked up in a table that may hold it"
    return suffix_rows(trace, spec, {})


def _outcomes(proposals: Proposals) -> Floats:
    """``[T, D + 1]``: at each row the chance of each number of accepted tokens."""
    accept = proposals.accept
    rows, width = accept.shape
    # Tokens past the trace's end are not committed: a draft that reaches it ends there.
    known = np.minimum(proposals.num_drafted, rows - np.arange(rows))[:, None]
    reached = np.concatenate([np.ones((rows, 1)), np.cumprod(accept, axis=1)], axis=1)
    rejected = np.concatenate([1.0 - accept, np.ones((rows, 1))], axis=1)
    place = np.arange(width + 1)
    return np.where(place < known, reached * rejected, np.where(place == known, reached, 0.0))


def _expected_starts(outcomes: Floats) -> Floats:
    """``[T]``: the expected number of rounds that start at each row.

    The first row is where the first round starts; a round that starts at row ``t`` and has ``a`` tokens accepted is
    followed by one at row ``t + a + 1``. That is a triangular system with as many bands as there are outcomes.
    """
    rows = len(outcomes)
    system = np.concatenate([np.ones((1, rows)), -outcomes.T])[:rows]
    first = np.zeros(rows)
    first[0] = 1.0
    starts: Floats = solve_banded((len(system) - 1, 0), system, first)
    return starts


def _counts(proposals: Proposals, expected: Floats, prompt_length: int) -> dict[RoundKind, RoundCount]:
    contexts = prompt_length + np.arange(len(expected))
    drafts = set(zip(proposals.origins.tolist(), proposals.num_drafted.tolist(), strict=True))
    counts = {}
    for origin, num_drafted in sorted(drafts):
        alike = (proposals.origins == origin) & (proposals.num_drafted == num_drafted)
        totals, weighted = expected[alike].sum(axis=0), contexts[alike] @ expected[alike]
        for accepted in np.flatnonzero(totals > NEGLIGIBLE).tolist():
            total = float(totals[accepted])
            counts[RoundKind(origin, num_drafted, accepted)] = RoundCount(total, float(weighted[accepted]) / total)
    return counts
