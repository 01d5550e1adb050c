"""Drafting with a skip set that is chosen anew while decoding: the common part of SWIFT, CLaSp and ConfLayers.

A step of the choice runs before a round drafts, when the cache holds everything that is committed, and only once
decoding has paid for it. It reads committed tokens alone, so that the choice is a function of the past and the law of
what is emitted stays the target's.
"""

from __future__ import annotations

from abc import abstractmethod
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from pydantic import Field

from selfspec_runtime.drafts.overhead import Overhead, SearchBudget
from selfspec_runtime.drafts.passes import PassSource
from selfspec_runtime.drafts.source import RoundContext, SourceSpec
from selfspec_runtime.errors import PlanError
from selfspec_runtime.scratch import require_positions

if TYPE_CHECKING:
    from selfspec_runtime.drafts.draft import Draft
    from selfspec_runtime.layer_skip import LayerSkipSet
    from selfspec_runtime.target import Target


class Step(NamedTuple):
    """A step that could be made now.

    Attributes:
        num_layers: Layers that its pass runs.
        num_rows: Rows of the pass.
    """

    num_layers: float
    num_rows: int


class DynamicSkipSource(PassSource):
    """Drafts by passes of the model under a skip set that changes between rounds.

    Args:
        target: The model.
        skip: The set to begin with, also after a reset.
        origin: Name of the kind of source.
        budget: Limits what choosing may cost.
        interval: Rounds between two steps, at least.

    Raises:
        PlanError: The family cannot pass committed tokens through a draft again.
    """

    def __init__(self, target: Target, skip: LayerSkipSet, *, origin: str, budget: SearchBudget, interval: int) -> None:
        require_positions(target)
        super().__init__(target, target.programs.without(skip), origin=origin)
        self.skip = skip
        self.interval = interval
        self._start, self._start_program = skip, self.program
        self._budget = budget
        self._rounds = 0

    @property
    def overhead(self) -> Overhead:
        """What choosing has cost since the last reset."""
        return self._budget.spent

    def prepare(self, context: RoundContext) -> None:
        """Makes a step of the choice if one is due and paid for."""
        step = self._due(context) if self._rounds >= self.interval else None
        if step is not None and self._budget.allows(self._work(step)):
            self._search(step, context)

    def propose(self, context: RoundContext) -> Draft:
        """Chooses what to leave out, then drafts."""
        self.prepare(context)
        return super().propose(context)

    def observe(self, draft: Draft, *, num_accepted: int) -> None:
        """Counts the round's work, whoever drafted."""
        self._rounds += 1
        verified = self._budget.pass_work(self.target.num_layers, len(draft.node_ids) + 1)
        self._budget.decoded(draft.num_passes * self.kept_layers(self.skip) + verified)
        if draft.num_passes:
            self._learn(draft, num_accepted)

    def reset(self) -> None:
        """Goes back to the set to begin with, and forgets everything."""
        self._budget.reset()
        self._rounds = 0
        self._forget()
        self.skip, self.program = self._start, self._start_program

    def kept_layers(self, skip: LayerSkipSet) -> float:
        """Layers that a draft pass runs; a sub-layer is half a layer."""
        return self.target.num_layers - len(skip) / 2

    def _search(self, step: Step, context: RoundContext) -> None:
        started = perf_counter()
        self._step(context)
        self._budget.searched(self._work(step), num_rows=step.num_rows, seconds=perf_counter() - started)
        self._rounds = 0

    def _work(self, step: Step) -> float:
        return self._budget.pass_work(step.num_layers, step.num_rows)

    def _use(self, skip: LayerSkipSet) -> None:
        self.skip, self.program = skip, self.target.programs.without(skip)

    @abstractmethod
    def _due(self, context: RoundContext) -> Step | None:
        """What the next step would run, or None if none is to be made now."""

    @abstractmethod
    def _step(self, context: RoundContext) -> None:
        """Makes it; an exception leaves the state as it was."""

    def _learn(self, draft: Draft, num_accepted: int) -> None:
        """Hears the outcome of a round that this source drafted."""

    def _forget(self) -> None:
        """Forgets what was learnt."""


class DynamicSkipSpec(SourceSpec):
    """What the plan entries of these sources share.

    Attributes:
        interval: Rounds between two steps of the choice, at least.
        max_overhead: Largest share of the decoding's work that choosing may come to, at any time.
        row_cost: What a further row of a pass costs relative to the first; 1 counts layers times tokens, which no
            machine exceeds, 0 is for passes that are flat in their rows.
    """

    interval: int = Field(default=1, ge=1, le=4096)
    max_overhead: float = Field(default=0.05, ge=0.0, le=1000.0, allow_inf_nan=False)
    row_cost: float = Field(default=1.0, ge=0.0, le=1.0)

    @abstractmethod
    def first_skip(self, num_layers: int) -> LayerSkipSet:
        """What is left out before anything was chosen."""

    def budget(self) -> SearchBudget:
        """Makes the limit on the choice's cost."""
        return SearchBudget(self.max_overhead, self.row_cost)


def spread_layers(num_layers: int, count: int) -> tuple[int, ...]:
    """So many layers, evenly spread over the inner ones; the first and the last only if no other are left."""
    inner = range(1, num_layers - 1)
    if count > len(inner):
        return (*inner, num_layers - 1, 0)[:count]
    return tuple(inner[(2 * number + 1) * len(inner) // (2 * count)] for number in range(count))


def require_layers(count: int, num_layers: int) -> None:
    """Checks that something is left to run.

    Raises:
        PlanError: All layers or more would be left out.
    """
    if count >= num_layers:
        message = (
            f"A draft without {count} layers is not possible: the model has {num_layers} layers. "
            f"Leave out {num_layers - 1} at most."
        )
        raise PlanError(message)
