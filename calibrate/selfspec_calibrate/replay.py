"""Replays a plan's rounds over a trace, without decoding."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfspec_calibrate.ngram_rows import NgramRows, ngram_rows
from selfspec_calibrate.proposers import NOTHING, FirstOfProposer, NgramProposer, PassProposer, Proposer
from selfspec_runtime.drafts.first_of import NgramFirstSpec
from selfspec_runtime.drafts.ngram import NgramSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selfspec_calibrate.proposers import Proposal
    from selfspec_calibrate.scoring import TokenScores
    from selfspec_calibrate.trace import Trace
    from selfspec_runtime.controllers.controller import Controller
    from selfspec_runtime.drafts.registry import AnySourceSpec
    from selfspec_runtime.plan import DraftPlan

#: Rounds less likely than this are left out; it bounds the work on sampled traces.
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
        return sum(entry.count * kind.num_drafted for kind, entry in self.rounds.items() if kind.origin != "ngram")


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
        self._limit = len(trace.output_ids) if max_new_tokens is None else max_new_tokens
        self._ngrams: dict[tuple[int, int], NgramRows] = {}

    def replay(self, plan: DraftPlan, scores: TokenScores | None = None) -> ReplayedTrace:
        """Counts the rounds of a plan.

        Args:
            plan: What drafts, and how far.
            scores: Scores of the plan's passes on this trace, ``[T]`` each; None if it drafts by no passes.
        """
        controller = plan.controller.build()
        proposer = None if plan.source is None else self._proposer(plan.source, controller, scores)
        starts = [1.0] + [0.0] * self.num_rows
        counts: defaultdict[RoundKind, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for row in range(self.num_rows):
            if starts[row] < NEGLIGIBLE:
                continue
            proposal = self._proposal(proposer, controller, row)
            for accepted, chance in _outcomes(proposal):
                weight = starts[row] * chance
                starts[min(row + accepted + 1, self.num_rows)] += weight
                entry = counts[RoundKind(proposal.origin, proposal.num_drafted, accepted)]
                entry[0] += weight
                entry[1] += weight * (len(self.trace.prompt_ids) + row)
        rounds = {kind: RoundCount(count, total / count) for kind, (count, total) in counts.items()}
        return ReplayedTrace(rounds, self.num_rows)

    def _proposal(self, proposer: Proposer | None, controller: Controller, row: int) -> Proposal:
        room = self._limit - row - 2
        budget = min(controller.budget(), room)
        if proposer is None or budget <= 0:
            return NOTHING
        return proposer.at(row, budget=budget, room=room)

    def _proposer(self, spec: AnySourceSpec, controller: Controller, scores: TokenScores | None) -> Proposer:
        if isinstance(spec, NgramSpec):
            return NgramProposer(self._ngram_rows(spec), limit=spec.num_draft_tokens)
        if isinstance(spec, NgramFirstSpec):
            parts = (spec.ngram, spec.then)
            return FirstOfProposer(tuple(self._proposer(part, controller, scores) for part in parts))
        assert scores is not None, f"{spec.describe()} drafts by passes, which need scores"
        return PassProposer(scores, controller, origin=spec.kind)

    def _ngram_rows(self, spec: NgramSpec) -> NgramRows:
        bounds = (spec.min_match, spec.max_match)
        if bounds not in self._ngrams:
            self._ngrams[bounds] = ngram_rows(self.trace, *bounds)
        return self._ngrams[bounds]


def _outcomes(proposal: Proposal) -> Iterator[tuple[int, float]]:
    """How many tokens are accepted, with the chance of each possible number."""
    reached = 1.0
    for accepted, chance in enumerate(proposal.accept):
        if chance < 1.0:
            yield accepted, reached * (1.0 - chance)
        reached *= chance
        if reached <= 0.0:
            return
    yield len(proposal.accept), reached


def replay(plan: DraftPlan, trace: Trace, scores: TokenScores | None = None) -> ReplayedTrace:
    """Counts a plan's rounds on one trace; see :meth:`TraceReplayer.replay`."""
    return TraceReplayer(trace).replay(plan, scores)
