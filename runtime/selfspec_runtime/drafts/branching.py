"""A chain with side branches where the draft was unsure (the caterpillar of SWIFT, Xia et al. 2410.06916).

A side branch is one token that the verification computes along with the chain. When the target does not say the
chain's token but the branch's, the token after it is at hand already: the round gives one token more. It costs one
row of the verification, and no draft pass.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from pydantic import Field

from selfspec_runtime.drafts.draft import Branch
from selfspec_runtime.drafts.first_of import NgramFirstSpec, PassSpec
from selfspec_runtime.drafts.overhead import Overhead
from selfspec_runtime.drafts.source import DraftSource, RoundContext, SourceSpec
from selfspec_runtime.errors import PlanError
from selfspec_runtime.rules import AcceptanceRule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from selfspec_runtime.acceptance import Verdict
    from selfspec_runtime.drafts.draft import Draft
    from selfspec_runtime.rules import Choice
    from selfspec_runtime.sequence import Sequence
    from selfspec_runtime.target import Target


class BranchingSource(DraftSource):
    """Another source's chain, with side branches.

    Args:
        chain: Drafts the chain; tokens that it looked up, instead of choosing them from a law, get no branches.
        max_branches: The most side branches per round, beyond the controller's budget.
        threshold: A place gets branches where the draft's likeliest token is less probable than this.
    """

    def __init__(self, chain: DraftSource, max_branches: int, threshold: float) -> None:
        self.chain = chain
        self.max_branches = max_branches
        self.threshold = threshold

    def propose(self, context: RoundContext) -> Draft:
        """Drafts the chain, then adds the branches that are likeliest to be needed."""
        watcher = _BranchingRule(context.rule, self.max_branches, self.threshold)
        draft = self.chain.propose(replace(context, rule=watcher))
        draft.branches = watcher.branches(draft.token_ids)[: self._num_free_slots(context, len(draft))]
        return draft

    def _num_free_slots(self, context: RoundContext, chain_length: int) -> int:
        """Branches stand behind the chain in the cache, which ends where the model's context does."""
        limit = context.cache.max_positions
        if limit is None:
            return self.max_branches
        return max(min(self.max_branches, limit - len(context.sequence) - chain_length), 0)

    def observe(self, draft: Draft, *, num_accepted: int) -> None:
        """Passes the outcome of the chain on."""
        self.chain.observe(draft, num_accepted=num_accepted)

    def reset(self) -> None:
        """Passes it on."""
        self.chain.reset()

    @property
    def extra_bytes(self) -> int:
        """What the chain's source holds."""
        return self.chain.extra_bytes

    @property
    def overhead(self) -> Overhead:
        """What choosing how to draft the chain has cost."""
        return self.chain.overhead


class _Candidate(NamedTuple):
    """A possible branch beside a chosen token, with its chance to be needed."""

    chance: float
    chosen: int
    branch: Branch


class _BranchingRule(AcceptanceRule):
    """Another rule, noting the next best tokens wherever its choice is unsure; the choice itself is untouched."""

    def __init__(self, rule: AcceptanceRule, max_branches: int, threshold: float) -> None:
        super().__init__(rule.settings, rule.processors)
        self._rule = rule
        self._max_branches, self._threshold = max_branches, threshold
        self._candidates: list[_Candidate] = []
        self._reach = 1.0

    def branches(self, chain: list[int]) -> tuple[Branch, ...]:
        """The branches of a chain that are likeliest to be needed, likeliest first."""
        places = dict(enumerate(chain))
        fitting = [each for each in self._candidates if places.get(each.branch.place) == each.chosen]
        fitting.sort(key=lambda each: -each.chance)
        return tuple(each.branch for each in fitting[: self._max_branches])

    def choose(
        self, logits: Tensor, sequence: Sequence, drafted: list[int], *, wants_confidence: bool = False
    ) -> Choice:
        """Chooses as the rule does."""
        choice = self._rule.choose(logits, sequence, drafted, wants_confidence=wants_confidence)
        if not drafted:
            self._candidates, self._reach = [], 1.0
        law = logits[0].float().softmax(dim=-1)
        confidence = float(law.max())
        if confidence < self._threshold:
            self._note(law, self._rule.scores(logits, sequence, drafted), choice.token_id, place=len(drafted))
        self._reach *= confidence if math.isfinite(confidence) else 0.0
        return choice

    def _note(self, law: Tensor, scores: Tensor, chosen: int, *, place: int) -> None:
        best = scores.softmax(dim=-1).topk(min(self._max_branches + 1, len(scores)))
        probs = law[best.indices].tolist()
        for weight, token_id, prob in zip(best.values.tolist(), best.indices.tolist(), probs, strict=True):
            if token_id != chosen and weight > 0:
                branch = Branch(place, token_id, prob)
                self._candidates.append(_Candidate(self._reach * weight, chosen, branch))

    def decide(self, draft: Draft, logits: Tensor, sequence: Sequence) -> Verdict:
        """Decides as the rule does."""
        return self._rule.decide(draft, logits, sequence)

    def _scores(self, logits: Tensor, position: int) -> Tensor:
        return self._rule._scores(logits, position)

    def _draw(self, logits: Tensor, position: int, *, round_start: int) -> tuple[int, Tensor | None]:
        return self._rule._draw(logits, position, round_start=round_start)

    def _decide(self, draft: Draft, logits: Tensor, position: int) -> Verdict:
        return self._rule._decide(draft, logits, position)


class BranchingSpec(SourceSpec):
    """Plan entry for a chain with side branches.

    Attributes:
        chain: What drafts the chain.
        max_branches: The most side branches per round, each one more row to verify.
        branch_threshold: A place gets branches where the draft's likeliest token is less probable than this.
    """

    kind: Literal["tree"] = "tree"
    chain: Annotated[PassSpec | NgramFirstSpec, Field(discriminator="kind")]
    max_branches: int = Field(default=2, ge=1, le=16)
    branch_threshold: float = Field(default=0.6, gt=0.0, le=1.0)

    def build(self, target: Target, arrays: Mapping[str, Tensor]) -> BranchingSource:
        """Makes the chain's source and what adds branches to it."""
        if not target.takes_trees:
            message = (
                f"{type(target.model).__name__} cannot verify a tree: {target.parts.tied_to_slots}, and a side branch "
                "stands elsewhere in the cache than in its text. Draft without branches on this model: use the plan's "
                "chain as its source."
            )
            raise PlanError(message)
        return BranchingSource(self.chain.build(target, arrays), self.max_branches, self.branch_threshold)

    def validate_for(self, num_layers: int) -> None:
        """Checks the chain's source."""
        self.chain.validate_for(num_layers)

    def describe(self) -> str:
        """For example ``exit after layer 8 with 2 branches below 0.60``."""
        branches = f"{self.max_branches} branch{'es' if self.max_branches > 1 else ''}"
        return f"{self.chain.describe()} with {branches} below {self.branch_threshold:.2f}"

    def array_names(self) -> tuple[str, ...]:
        """Those of the chain's source."""
        return self.chain.array_names()
