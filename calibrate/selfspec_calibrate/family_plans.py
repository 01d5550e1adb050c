"""The plans that families which cannot be replayed are timed with, and why a model has none of them.

Each takes what the predicted study found best, and lets the family do its work on that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from selfspec_calibrate.family_world import CONTROLLER_KINDS, SOURCE_KINDS
from selfspec_calibrate.plan_parts import LOOKUPS
from selfspec_calibrate.skip_ranking import positions_of
from selfspec_calibrate.vocabulary_ranks import vocab_sizes
from selfspec_runtime.draft_head import RANKS_NAME
from selfspec_runtime.drafts.first_of import NgramFirstSpec
from selfspec_runtime.drafts.skipped import LayerSkipSpec
from selfspec_runtime.plan import DraftPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from selfspec_calibrate.family_world import FamilyWorld

#: Draft lengths and thresholds of drafts that stop by confidence: SWIFT's 25 and 0.8, cut to the longest draft.
SURE = 0.8
#: Shares of the inner layers that CLaSp and ConfLayers leave out, the published ones first.
SKIPPED_SHARES = (0.45, 0.25, 0.1)
#: Rounds between two choices: the published 64, and few enough that a short answer sees several.
INTERVALS = (64, 8)

Maybe = DraftPlan | None


def trees(world: FamilyWorld) -> list[DraftPlan]:
    """Side branches on the best passes, and on the best lookup."""
    best = (world.best_passes, _plan_of(world, "quantized"), _plan_of(world, "ngram_first"))
    found = (_wrapped(world, plan, "tree") for plan in dict.fromkeys(best) if plan is not None)
    return _present(found)


def saguaro(world: FamilyWorld) -> list[DraftPlan]:
    """The best lookup, drafted while verification runs."""
    best = world.best(*LOOKUPS)
    if best is None:
        return []
    return _present([_updated(best.plan, {"scheduler": {"kind": "saguaro"}})])


def adaptive_thresholds(world: FamilyWorld) -> list[DraftPlan]:
    """The best passes under a threshold that follows the acceptance rate."""
    return _controlled(world, "adaptive_threshold", needs_costs=False, of=(world.best_passes,))


def accepted_lengths(world: FamilyWorld) -> list[DraftPlan]:
    """The best plan under a length that follows accepted lengths."""
    return _controlled(world, "accepted_length", needs_costs=True, of=_best_plans(world))


def thompsons(world: FamilyWorld) -> list[DraftPlan]:
    """The best plan under a length drawn by Thompson sampling."""
    return _controlled(world, "thompson", needs_costs=True, of=_best_plans(world))


def fallbacks(world: FamilyWorld) -> list[DraftPlan]:
    """The best plans as they are, but plain while they lose."""
    plans = _best_plans(world)
    costs = ((plan, world.costs_of(plan)) for plan in plans)
    return _present(_updated(plan, {"controller": {"costs": known}}) for plan, known in costs if known is not None)


def reduced_heads(world: FamilyWorld) -> list[DraftPlan]:
    """The best passes with a head over the tokens that come most often, the largest head first."""
    best = [plan for plan in (world.best_passes, _plan_of(world, "quantized")) if plan is not None]
    sizes = vocab_sizes(world.vocab_size)[::-1]
    pairs = [(plan, size) for plan in dict.fromkeys(best) for size in sizes]
    alone = [_updated(plan, {"source": {"vocab_size": size}}) for plan, size in pairs]
    return _present([*alone, *(_with_reduced_then(_plan_of(world, "ngram_first"), size) for size in sizes[:1])])


def _with_reduced_then(plan: Maybe, size: int) -> Maybe:
    """A lookup before passes, these with a reduced head."""
    if plan is None or not isinstance(plan.source, NgramFirstSpec):
        return None
    then = {**plan.source.then.model_dump(mode="json"), "vocab_size": size}
    return _updated(plan, {"source": {"then": then}})


def swifts(world: FamilyWorld) -> list[DraftPlan]:
    """Skip sets to begin with: the one that was predicted to be fastest, and the published odd layers."""
    best = world.best("layer_skip")
    starts = [] if best is None else [best.plan.source]
    skips = [source.skip for source in starts if isinstance(source, LayerSkipSpec)]
    odd = range(1, world.space.num_layers - 1, 2)
    published = {"attention": list(odd), "mlp": list(odd)}
    given: list[Any] = [*(skip.model_dump(mode="json") for skip in skips), published]
    return _present(world.plan({"kind": "swift", "skip": skip}, sure(world)) for skip in given)


def clasps(world: FamilyWorld) -> list[DraftPlan]:
    """Numbers of layers to leave out: as many as the fastest predicted skip set, and the published shares."""
    pairs = zip(_skipped_layers(world), (INTERVALS[1], *INTERVALS), strict=False)
    return _present(
        world.plan({"kind": "clasp", "num_skipped": count, "interval": interval}, sure(world))
        for count, interval in pairs
    )


def conf_layers(world: FamilyWorld) -> list[DraftPlan]:
    """Shares of the inner layers, chosen by confidence, again and again within a short answer."""
    return _present(
        world.plan({"kind": "conf_layers", "skip_ratio": share, "interval": INTERVALS[1]}, sure(world))
        for share in SKIPPED_SHARES[1:]
    )


def fewer_experts(world: FamilyWorld) -> list[DraftPlan]:
    """One expert less than the model's number, and half of it."""
    have = world.num_experts or 0
    counts = dict.fromkeys(count for count in (have - 1, have // 2) if 1 <= count < have)
    lengths = dict.fromkeys(min(count, world.space.max_draft_tokens) for count in (3, 1))
    return _present(
        world.plan({"kind": "fewer_experts", "num_experts": count}, {"kind": "fixed", "num_draft_tokens": length})
        for count in counts
        for length in lengths
    )


def sure(world: FamilyWorld) -> dict[str, Any]:
    """A controller that stops where the draft is unsure."""
    return {
        "kind": "confidence",
        "num_draft_tokens": world.space.max_draft_tokens,
        "draft_confidence_threshold": SURE,
    }


def never_absent(world: FamilyWorld) -> str | None:
    """Every model has it."""
    del world
    return None


def without_source(kind: str) -> Callable[[FamilyWorld], str | None]:
    """Absent where this version has no such source."""
    return lambda world: None if kind in SOURCE_KINDS else "this version has no such source"


def without_controller(kind: str) -> Callable[[FamilyWorld], str | None]:
    """Absent where this version has no such controller, or there is nothing to control."""
    return lambda world: _nothing_to_build_on(world) if kind in CONTROLLER_KINDS else "this version has none"


def without_passes(world: FamilyWorld) -> str | None:
    """Absent where no draft by passes was predicted."""
    return None if world.best_passes is not None else "no draft by passes of the model was searched"


def without_scheduler(world: FamilyWorld) -> str | None:
    """Absent where plans name no scheduler."""
    return _nothing_to_build_on(world) if "scheduler" in DraftPlan.model_fields else "this version has no scheduler"


def without_ranks(world: FamilyWorld) -> str | None:
    """Absent where tokens were not ranked, or no draft by passes was predicted."""
    if RANKS_NAME not in world.array_names:
        return "the vocabulary's tokens were not ranked"
    return without_passes(world)


def without_costs(world: FamilyWorld) -> str | None:
    """Absent where nothing is known of the costs of rounds."""
    best = _best_plans(world)
    known = any(world.costs_of(plan) is not None for plan in best)
    return None if known else "the costs of no plan's rounds are known"


def without_experts(world: FamilyWorld) -> str | None:
    """Absent where no router could choose fewer."""
    if world.num_experts is None:
        return "the model has no routed experts"
    return None if world.num_experts > 1 else "the model's router chooses one expert only"


def without_quantisation(world: FamilyWorld) -> str | None:
    """Absent where no NF4 copy can be made."""
    return None if world.can_quantize else "no NF4 copy of this model can be made on this device"


def without_inner_layers(world: FamilyWorld) -> str | None:
    """Absent in a model of one layer."""
    return None if world.space.num_layers > 1 else "the model has one layer only"


def _nothing_to_build_on(world: FamilyWorld) -> str | None:
    return None if world.predictions else "no plan to build on was predicted"


def _best_plans(world: FamilyWorld) -> tuple[DraftPlan, ...]:
    """The fastest predicted plan, and the fastest by passes."""
    best = world.best()
    found = (None if best is None else best.plan, world.best_passes)
    return tuple(dict.fromkeys(plan for plan in found if plan is not None))


def _plan_of(world: FamilyWorld, kind: str) -> Maybe:
    best = world.best(kind)
    return None if best is None else best.plan


def _controlled(world: FamilyWorld, kind: str, *, needs_costs: bool, of: Iterable[Maybe]) -> list[DraftPlan]:
    found: list[Maybe] = []
    for plan in (each for each in of if each is not None and each.source is not None):
        costs = world.costs_of(plan)
        given: dict[str, Any] = {"kind": kind, "num_draft_tokens": world.space.max_draft_tokens}
        given |= {} if costs is None or not needs_costs else {"costs": costs}
        if costs is not None or not needs_costs:
            found.append(world.plan(plan.source.model_dump(mode="json"), given))  # type: ignore[union-attr]
    return _present(found)


def _skipped_layers(world: FamilyWorld) -> list[int]:
    """Whole layers to leave out, at least one, all different."""
    best, inner = world.best("layer_skip"), max(world.space.num_layers - 2, 1)
    counts = [max(round(share * inner), 1) for share in SKIPPED_SHARES]
    if best is not None and isinstance(best.plan.source, LayerSkipSpec):
        counts.insert(0, max(len(positions_of(best.plan.source.skip)) // 2, 1))
    return list(dict.fromkeys(counts))


def _wrapped(world: FamilyWorld, plan: DraftPlan, kind: str) -> Maybe:
    assert plan.source is not None, "plain decoding has nothing to wrap"
    inner = plan.source.model_dump(mode="json")
    return world.plan({"kind": kind, "chain": inner}, plan.controller.model_dump(mode="json"))


def _updated(plan: DraftPlan, changes: dict[str, dict[str, Any]]) -> Maybe:
    """The plan with some fields of its parts changed; None where its parts have no such fields."""
    data = plan.model_dump(mode="json")
    merged = {name: {**(data.get(name) or {}), **values} for name, values in changes.items()}
    try:
        return DraftPlan.model_validate({**data, **merged})
    except ValueError:
        return None


def _present(plans: Iterable[Maybe]) -> list[DraftPlan]:
    return list(dict.fromkeys(plan for plan in plans if plan is not None))
