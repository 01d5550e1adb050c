"""Plans as a few numbers that a sampler can draw, and back.

A skip set is not drawn bit by bit: a budget, a weight and a spread rank the sub-layers by their measured
sensitivity, and two flips leave the rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Literal

from selfspec_calibrate.search_space import (
    LOOKUP_FAMILIES,
    MAX_MIN_MATCH,
    MAX_SPAN,
    MIN_PROBABILITIES,
    TOKENS_PER_MATCH,
)
from selfspec_calibrate.skip_ranking import positions_of, skip_set_of
from selfspec_runtime.controllers.confidence import ConfidenceSpec
from selfspec_runtime.controllers.fixed import FixedSpec
from selfspec_runtime.drafts.early_exit import EarlyExitSpec
from selfspec_runtime.drafts.first_of import NgramFirstSpec
from selfspec_runtime.drafts.ngram import NgramSpec
from selfspec_runtime.drafts.quantized import QuantizedSpec
from selfspec_runtime.drafts.skipped import LayerSkipSpec
from selfspec_runtime.drafts.suffix import SuffixSpec
from selfspec_runtime.layer_skip import LayerSkipSet
from selfspec_runtime.plan import DraftPlan

if TYPE_CHECKING:
    from typing import Any

    import optuna
    from optuna.trial import BaseTrial

    from selfspec_calibrate.search_space import SearchSpace
    from selfspec_calibrate.settings import Family
    from selfspec_calibrate.skip_ranking import SkipRanking
    from selfspec_runtime.controllers.registry import AnyControllerSpec
    from selfspec_runtime.drafts.first_of import PassSpec
    from selfspec_runtime.drafts.registry import AnySourceSpec

#: The user attribute under which a trial that was asked for carries its plan.
PLAN_ATTRIBUTE = "plan"

MIN_WEIGHT, MAX_WEIGHT, MAX_SPREAD = 0.25, 4.0, 3.0
FLIPS = ("skip.flip_0", "skip.flip_1")


def suggest_plan(trial: BaseTrial, space: SearchSpace) -> DraftPlan:
    """The plan of a trial.

    Args:
        trial: An Optuna trial. If it was made by :func:`enqueue`, its plan is exactly the one asked for.
        space: The plans to choose from.
    """
    source = suggest_source(trial, space)
    plan = DraftPlan(source=source, controller=_controller(trial, space, source.kind))
    given = trial.user_attrs.get(PLAN_ATTRIBUTE)
    return plan if given is None else DraftPlan.model_validate_json(given)


def suggest_source(trial: BaseTrial, space: SearchSpace) -> AnySourceSpec:
    """The source of a trial, for a study whose trials try every controller."""
    family = trial.suggest_categorical("family", space.searched)
    if family in LOOKUP_FAMILIES:
        return _lookup(trial, family)
    if family == "ngram_first":
        then = trial.suggest_categorical("first.then", space.pass_families)
        lookup = trial.suggest_categorical("first.lookup", space.lookup_families)
        limit = trial.suggest_int("first.limit", 0, space.max_draft_tokens)
        return NgramFirstSpec(ngram=_lookup(trial, lookup, limit=limit), then=_passes(trial, space, then))
    return _passes(trial, space, family)


def enqueue(study: optuna.Study, plan: DraftPlan, space: SearchSpace) -> None:
    """Asks for a plan: the study's next trial is exactly this one, whether or not the numbers can express it."""
    study.enqueue_trial(params_of(plan, space), user_attrs={PLAN_ATTRIBUTE: plan.model_dump_json()})


def params_of(plan: DraftPlan, space: SearchSpace) -> dict[str, Any]:
    """The numbers from which :func:`suggest_plan` makes a plan.

    Exact but for a skip set more than two flips away from every rank: then the nearest one's numbers, which tell a
    sampler the right size.

    Args:
        plan: A plan that drafts.
        space: The plans to choose from.
    """
    assert plan.source is not None, "plain decoding is not in the search space"
    return _source_params(plan.source, space) | _controller_params(plan.controller)


def _passes(trial: BaseTrial, space: SearchSpace, family: Family) -> PassSpec:
    if family == "early_exit":
        return _early_exit(trial, space)
    if family == "layer_skip":
        return LayerSkipSpec(skip=_skip(trial, space))
    quantize_head = trial.suggest_categorical("quantized.head", [False, True])
    budget = trial.suggest_int("quantized.skip", 0, space.max_skipped_quantized) if space.ranking else 0
    skip = space.ranking.ranked(budget) if space.ranking else LayerSkipSet()
    return QuantizedSpec(quantize_head=quantize_head, skip=skip)


def _early_exit(trial: BaseTrial, space: SearchSpace) -> EarlyExitSpec:
    heads = ["own", "linear"] if space.linear_exits else ["own"]
    head: Literal["own", "linear"] = trial.suggest_categorical("exit.head", heads)
    if head == "own":
        return EarlyExitSpec(exit_layer=trial.suggest_int("exit.layer", 1, space.num_layers - 1))
    index = trial.suggest_int("exit.linear", 0, len(space.linear_exits) - 1)
    rank = trial.suggest_categorical("exit.rank", (0, *space.linear_ranks)) if space.linear_ranks else 0
    return EarlyExitSpec(exit_layer=space.linear_exits[index], head="linear", rank=rank or None)


def _skip(trial: BaseTrial, space: SearchSpace) -> LayerSkipSet:
    ranking = space.ranking
    assert ranking is not None, "skip sets need sensitivities"
    budget = trial.suggest_int("skip.budget", 1, space.max_skipped)
    weight = trial.suggest_float("skip.attention_weight", MIN_WEIGHT, MAX_WEIGHT, log=True)
    spread = trial.suggest_float("skip.spread", 0.0, MAX_SPREAD)
    flips = [trial.suggest_int(name, 0, len(ranking.candidates)) for name in FLIPS]
    positions = set(positions_of(ranking.ranked(budget, attention_weight=weight, spread=spread)))
    for flip in filter(None, flips):
        positions ^= {ranking.candidates[flip - 1]}
    return skip_set_of(positions) if positions else ranking.ranked(1)


def _lookup(trial: BaseTrial, family: Family, *, limit: int = 0) -> NgramSpec | SuffixSpec:
    if family == "suffix":
        return SuffixSpec(
            min_match=trial.suggest_int("suffix.min", 1, MAX_MIN_MATCH),
            tokens_per_match=trial.suggest_categorical("suffix.per_match", TOKENS_PER_MATCH),
            min_probability=trial.suggest_categorical("suffix.probability", MIN_PROBABILITIES),
            num_draft_tokens=limit or None,
        )
    shortest = trial.suggest_int("ngram.min", 1, MAX_MIN_MATCH)
    span = trial.suggest_int("ngram.span", 0, MAX_SPAN)
    return NgramSpec(min_match=shortest, max_match=shortest + span, num_draft_tokens=limit or None)


def _controller(trial: BaseTrial, space: SearchSpace, family: Family) -> AnyControllerSpec:
    num_draft_tokens = trial.suggest_int("controller.drafts", 1, space.max_draft_tokens)
    if family in LOOKUP_FAMILIES or trial.suggest_categorical("controller.kind", ["fixed", "confidence"]) == "fixed":
        return FixedSpec(num_draft_tokens=num_draft_tokens)
    threshold = round(trial.suggest_float("controller.threshold", 0.0, 1.0), 2)
    return ConfidenceSpec(num_draft_tokens=num_draft_tokens, draft_confidence_threshold=threshold)


def _source_params(source: AnySourceSpec, space: SearchSpace) -> dict[str, Any]:
    if isinstance(source, NgramFirstSpec):
        then = _source_params(source.then, space)
        params = {"first.then": then.pop("family"), "first.limit": source.ngram.num_draft_tokens or 0}
        params["first.lookup"] = source.ngram.kind
        return {"family": "ngram_first"} | params | _lookup_params(source.ngram) | then
    if isinstance(source, NgramSpec | SuffixSpec):
        return {"family": source.kind} | _lookup_params(source)
    if isinstance(source, EarlyExitSpec):
        return {"family": "early_exit"} | _exit_params(source, space)
    if isinstance(source, QuantizedSpec):
        params = {"quantized.head": source.quantize_head}
        return {"family": "quantized"} | params | ({"quantized.skip": len(source.skip)} if space.ranking else {})
    assert isinstance(source, LayerSkipSpec), f"{source.kind} is not in the search space"
    return {"family": "layer_skip"} | _skip_params(source.skip, space)


def _exit_params(source: EarlyExitSpec, space: SearchSpace) -> dict[str, Any]:
    if source.head == "own":
        return {"exit.head": "own", "exit.layer": source.exit_layer}
    rank = {"exit.rank": source.rank or 0} if space.linear_ranks else {}
    return {"exit.head": "linear", "exit.linear": space.linear_exits.index(source.exit_layer)} | rank


def _lookup_params(source: NgramSpec | SuffixSpec) -> dict[str, Any]:
    if isinstance(source, SuffixSpec):
        return {
            "suffix.min": min(source.min_match, MAX_MIN_MATCH),
            "suffix.per_match": _nearest(source.tokens_per_match, TOKENS_PER_MATCH),
            "suffix.probability": _nearest(source.min_probability, MIN_PROBABILITIES),
        }
    return {"ngram.min": source.min_match, "ngram.span": source.max_match - source.min_match}


def _nearest(value: float, known: tuple[float, ...]) -> float:
    return min(known, key=lambda other: abs(other - value))


def _controller_params(controller: AnyControllerSpec) -> dict[str, Any]:
    params: dict[str, Any] = {"controller.kind": controller.kind, "controller.drafts": controller.max_draft_tokens}
    if isinstance(controller, ConfidenceSpec):
        params["controller.threshold"] = controller.draft_confidence_threshold
    return params


@dataclass(frozen=True)
class _Rank:
    """Numbers of a rank, and where the wanted set differs from it."""

    budget: int
    weight: float
    spread: float
    difference: frozenset[int]


def _skip_params(skip: LayerSkipSet, space: SearchSpace) -> dict[str, Any]:
    ranking = space.ranking
    assert ranking is not None, "skip sets need sensitivities"
    nearest = _nearest_rank(skip, ranking, most=space.max_skipped)
    expressible = [p for p in sorted(nearest.difference) if p in ranking.candidates]
    flips = [ranking.candidates.index(position) + 1 for position in expressible]
    # More differences than flips cannot be told: the rank alone is then nearer than an arbitrary part of them.
    flips = [*flips, 0, 0][: len(FLIPS)] if len(flips) <= len(FLIPS) else [0, 0]
    numbers = {"skip.budget": nearest.budget, "skip.attention_weight": nearest.weight, "skip.spread": nearest.spread}
    return numbers | dict(zip(FLIPS, flips, strict=True))


def _nearest_rank(skip: LayerSkipSet, ranking: SkipRanking, *, most: int) -> _Rank:
    """Among the ranked sets of about the same size the one that differs in the fewest sub-layers."""
    wanted = positions_of(skip)
    # Flips add to a rank or take away from it, so its size may differ by as many.
    sizes = dict.fromkeys(min(max(len(skip) + step, 1), most) for step in (0, -1, 1, -2, 2))
    ranks = [
        _Rank(size, weight, spread, wanted ^ frozenset(order[:size]))
        for size, ((weight, spread), order) in product(sizes, ranking.orders.items())
    ]
    return min(ranks, key=lambda rank: len(rank.difference))
