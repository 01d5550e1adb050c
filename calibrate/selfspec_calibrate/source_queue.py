"""Which source a predicted study scores next."""

from __future__ import annotations

import math
from collections import Counter
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from selfspec_calibrate.neighbours import source_neighbours
from selfspec_calibrate.seeds import seed_plans
from selfspec_calibrate.skip_ranking import LOWEST
from selfspec_runtime.drafts.first_of import NgramFirstSpec
from selfspec_runtime.drafts.ngram import NgramSpec
from selfspec_runtime.drafts.skipped import LayerSkipSpec
from selfspec_runtime.plan import DraftPlan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from selfspec_calibrate.prediction_book import ScoredSource
    from selfspec_calibrate.search_space import SearchSpace
    from selfspec_calibrate.settings import Family
    from selfspec_calibrate.skip_surrogate import SkipSurrogate
    from selfspec_runtime.drafts.registry import AnySourceSpec
    from selfspec_runtime.layer_skip import LayerSkipSet

#: Families not named here weigh 1: of 200 plans in five families a third are skip sets, by far the largest space.
QUOTAS: dict[str, int] = {"layer_skip": 2}

#: After the seeds, every so many of a family's sources are drawn by the sampler; the others improve on the best.
DRAWN_EVERY = 3

#: Draws in a row that may repeat what is known before a family counts as searched out.
PATIENCE = 8

#: How many of the best passes, and of the best lookups of each kind, are combined.
NUM_PASSES, NUM_LOOKUPS = 3, 2


class Candidate(NamedTuple):
    """What to score next.

    Attributes:
        family: Its family.
        plan: The plan to begin from, or None if the sampler is to draw a source of the family.
    """

    family: Family
    plan: DraftPlan | None


class SourceQueue:
    """Divides the trials among families by quota, so that none starves, and proposes sources that are not known.

    Args:
        space: The plans to choose from.
        known: What was scored; it grows while the study runs.
        surrogate: Proposes skip sets, or None if none are searched.
        seed: Of the proposals.
    """

    def __init__(
        self,
        space: SearchSpace,
        known: Mapping[AnySourceSpec, ScoredSource],
        *,
        surrogate: SkipSurrogate | None,
        seed: int,
    ) -> None:
        self._space = space
        self._known = known
        self._surrogate = surrogate
        self._seed = seed
        self._seeds = seed_plans(space)
        self._repeats: Counter[str] = Counter()
        self._open = list(space.searched)

    def next(self) -> Candidate | None:
        """The next candidate, or None once every family is searched out."""
        counts: Counter[str] = Counter(source.kind for source in self._known)
        while self._open:
            family = min(self._open, key=lambda family: counts[family] / QUOTAS.get(family, 1))
            plan = self._next_seed(family)
            if plan is None and self._repeats[family] == 0 and counts[family] % DRAWN_EVERY == 0:
                return Candidate(family, None)
            plan = plan or self._improvement(family)
            if plan is not None or self._repeats[family] < PATIENCE:
                return Candidate(family, plan)
            self._open.remove(family)
        return None

    def tell(self, family: Family, *, is_new: bool) -> None:
        """Learns whether the sampler's draw, or the plan asked for, was new."""
        self._repeats[family] = 0 if is_new else self._repeats[family] + 1

    def _next_seed(self, family: Family) -> DraftPlan | None:
        of_family = (plan for plan in self._seeds if plan.source is not None and plan.source.kind == family)
        return next((plan for plan in of_family if plan.source not in self._known), None)

    def _improvement(self, family: Family) -> DraftPlan | None:
        return next((plan for plan in self._improvements(family) if plan.source not in self._known), None)

    def _improvements(self, family: Family) -> Iterator[DraftPlan]:
        best = self._ranked((family,))
        if family == "layer_skip" and best:
            yield from (best[0].best.plan.model_copy(update={"source": source}) for source in self._proposed_skips())
        if family == "ngram_first":
            yield from self._compositions()
        for scored in best:
            for source in source_neighbours(scored.source, self._space):
                yield scored.best.plan.model_copy(update={"source": source})

    def _proposed_skips(self) -> Iterator[LayerSkipSpec]:
        losses: dict[LayerSkipSet, float] = {}
        for scored in self._known.values():
            source = getattr(scored.source, "then", scored.source)
            if isinstance(source, LayerSkipSpec) and scored.agreement is not None:
                losses[source.skip] = -math.log(max(scored.agreement, LOWEST))
        if self._surrogate is not None and losses:
            proposed = self._surrogate.propose(losses, (self._seed, len(losses)))
            yield from () if proposed is None else (LayerSkipSpec(skip=proposed),)

    def _compositions(self) -> Iterator[DraftPlan]:
        """The best lookups before the best passes; neither has to be scored again."""
        passes = self._ranked(self._space.pass_families)[:NUM_PASSES]
        kinds = ([scored.source for scored in self._ranked((each,))] for each in self._space.lookup_families)
        lookups = [source for sources in kinds for source in sources[:NUM_LOOKUPS]] or [NgramSpec()]
        for scored, lookup, limit in product(passes, lookups, (None, self._space.max_draft_tokens)):
            limited = lookup.model_copy(update={"num_draft_tokens": limit})
            source = NgramFirstSpec.model_validate({"ngram": limited, "then": scored.source})
            yield scored.best.plan.model_copy(update={"source": source})

    def _ranked(self, families: tuple[Family, ...]) -> list[ScoredSource]:
        of_families = [scored for scored in self._known.values() if scored.source.kind in families]
        return sorted(of_families, key=lambda scored: scored.best.speedup, reverse=True)
