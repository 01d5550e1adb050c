"""Plans that differ from a given one in one thing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from selfspec_calibrate.search_space import MAX_MIN_MATCH, MAX_SPAN, MIN_PROBABILITIES, TOKENS_PER_MATCH
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
    from collections.abc import Iterator

    from selfspec_calibrate.search_space import SearchSpace
    from selfspec_runtime.controllers.registry import AnyControllerSpec
    from selfspec_runtime.drafts.first_of import PassSpec
    from selfspec_runtime.drafts.registry import AnySourceSpec

#: Numbers of sources that are doubled and halved.
SCALED = ("vocab_size", "max_branches", "num_skipped")

#: How far a threshold moves, and between what.
THRESHOLD_STEP, LOWEST_THRESHOLD, HIGHEST_THRESHOLD = 0.1, 0.1, 0.95


def neighbours(plan: DraftPlan, space: SearchSpace) -> list[DraftPlan]:
    """Plans one step away: another draft length or threshold first, then another source, likelier ones first.

    Args:
        plan: A plan that drafts.
        space: The plans to choose from.

    Returns:
        Different plans, the given one not among them.
    """
    assert plan.source is not None, "plain decoding has no neighbours"
    controllers = controller_neighbours(plan.controller, space, lookup=isinstance(plan.source, NgramSpec | SuffixSpec))
    found = [plan.model_copy(update={"controller": controller}) for controller in controllers]
    sources = source_neighbours(plan.source, space)
    found += [plan.model_copy(update={"source": source}) for source in sources]
    return [other for other in dict.fromkeys(found) if other != plan]


def controller_neighbours(
    controller: AnyControllerSpec, space: SearchSpace, *, lookup: bool = False
) -> list[AnyControllerSpec]:
    """One draft more or less, twice or half as many, a threshold moved by 0.1, taken away or put there.

    Args:
        controller: Where to start from.
        space: The plans to choose from.
        lookup: Whether the source is a lookup, which has no confidence.
    """
    drafts = controller.max_draft_tokens
    wanted = dict.fromkeys((drafts + 1, drafts - 1, drafts * 2, drafts // 2))
    counts = [n for n in wanted if 1 <= n <= space.max_draft_tokens]
    found: list[AnyControllerSpec] = [controller.model_copy(update={"num_draft_tokens": n}) for n in counts]
    if controller.learns:
        return found
    if isinstance(controller, ConfidenceSpec):
        found += [_at(controller, step) for step in (THRESHOLD_STEP, -THRESHOLD_STEP)]
        found.append(FixedSpec(num_draft_tokens=drafts))
    elif not lookup:
        found.append(ConfidenceSpec(num_draft_tokens=space.max_draft_tokens))
    return [other for other in dict.fromkeys(found) if other != controller]


def source_neighbours(source: AnySourceSpec, space: SearchSpace) -> list[AnySourceSpec]:
    """Sources one step away: an exit, a head, a sub-layer, a bound."""
    if isinstance(source, NgramFirstSpec):
        found = [*_compositions(source, space)]
    elif isinstance(source, NgramSpec | SuffixSpec):
        found = [*_lookups(source)]
    elif isinstance(source, (EarlyExitSpec, LayerSkipSpec, QuantizedSpec)):
        found = [*_passes(source, space)]
    else:
        found = []
    found += _scaled(source)
    return [other for other in dict.fromkeys(found) if other != source]


def _scaled(source: AnySourceSpec) -> Iterator[AnySourceSpec]:
    """Twice and half of what a source counts, such as side branches or a head's tokens."""
    for name in SCALED:
        count: int | None = getattr(source, name, None)
        for other in () if count is None else (2 * count, count // 2):
            if changed := _with(source, name, other):
                yield changed


def _with(source: AnySourceSpec, name: str, count: int) -> AnySourceSpec | None:
    """The source with another number, or None where the number is out of bounds."""
    try:
        return type(source).model_validate({**source.model_dump(), name: count})
    except ValueError:
        return None


def _at(controller: ConfidenceSpec, step: float) -> ConfidenceSpec:
    threshold = round(controller.draft_confidence_threshold + step, 2)
    kept = min(max(threshold, LOWEST_THRESHOLD), HIGHEST_THRESHOLD)
    return controller.model_copy(update={"draft_confidence_threshold": kept})


def _compositions(source: NgramFirstSpec, space: SearchSpace) -> Iterator[AnySourceSpec]:
    for lookup in (*_lookups(source.ngram), *_limited(source.ngram, space)):
        yield NgramFirstSpec(ngram=lookup, then=source.then)
    for then in _passes(source.then, space):
        yield NgramFirstSpec(ngram=source.ngram, then=then)


def _lookups(source: NgramSpec | SuffixSpec) -> Iterator[NgramSpec | SuffixSpec]:
    return _suffixes(source) if isinstance(source, SuffixSpec) else _ngrams(source)


def _ngrams(source: NgramSpec) -> Iterator[NgramSpec]:
    low, high = source.min_match, source.max_match
    for shortest, longest in ((low, high + 1), (low, high - 1), (low + 1, high), (low - 1, high)):
        if 1 <= shortest <= min(longest, MAX_MIN_MATCH) and longest - shortest <= MAX_SPAN:
            yield source.model_copy(update={"min_match": shortest, "max_match": longest})


def _limited(source: NgramSpec | SuffixSpec, space: SearchSpace) -> Iterator[NgramSpec | SuffixSpec]:
    """A lookup with other limits of its own, which matter where passes have the controller's."""
    most, limit = space.max_draft_tokens, source.num_draft_tokens
    limits = (None, limit + 1, limit - 1, limit * 2, limit // 2) if limit else (most, most // 2)
    for other in limits:
        if other is None or 1 <= other <= most:
            yield source.model_copy(update={"num_draft_tokens": other})


def _suffixes(source: SuffixSpec) -> Iterator[SuffixSpec]:
    for shortest in (source.min_match + 1, source.min_match - 1):
        if 1 <= shortest <= MAX_MIN_MATCH:
            yield source.model_copy(update={"min_match": shortest})
    for length in (source.tokens_per_match * 2, source.tokens_per_match / 2):
        if TOKENS_PER_MATCH[0] <= length <= TOKENS_PER_MATCH[-1]:
            yield source.model_copy(update={"tokens_per_match": length})
    for share in MIN_PROBABILITIES:
        if share != source.min_probability:
            yield source.model_copy(update={"min_probability": share})


def _passes(source: PassSpec, space: SearchSpace) -> Iterator[PassSpec]:
    if isinstance(source, EarlyExitSpec):
        yield from _exits(source, space)
    elif isinstance(source, LayerSkipSpec):
        skips = (skip for skip in skip_neighbours(source.skip, space) if len(skip))
        yield from (source.model_copy(update={"skip": skip}) for skip in skips)
    elif isinstance(source, QuantizedSpec):
        yield source.model_copy(update={"quantize_head": not source.quantize_head})
        yield from _quantized_skips(source, space)


def _exits(source: EarlyExitSpec, space: SearchSpace) -> Iterator[EarlyExitSpec]:
    if source.head == "linear":
        yield source.model_copy(update={"head": "own", "rank": None})
        yield from (source.model_copy(update={"rank": rank}) for rank in _ranks(source.rank, space))
        at = space.linear_exits.index(source.exit_layer)
        yield from (
            source.model_copy(update={"exit_layer": space.linear_exits[other]})
            for other in (at - 1, at + 1)
            if 0 <= other < len(space.linear_exits)
        )
        return
    if source.exit_layer in space.linear_exits:
        yield source.model_copy(update={"head": "linear"})
    for layer in (source.exit_layer - 1, source.exit_layer + 1):
        if 1 <= layer < space.num_layers:
            yield source.model_copy(update={"exit_layer": layer})


def _ranks(rank: int | None, space: SearchSpace) -> list[int | None]:
    """The ranks next to one; the whole comes after the highest."""
    ranks = (*space.linear_ranks, None)
    at = ranks.index(rank) if rank in ranks else len(ranks) - 1
    return [ranks[other] for other in (at - 1, at + 1) if 0 <= other < len(ranks)]


def _quantized_skips(source: QuantizedSpec, space: SearchSpace) -> Iterator[QuantizedSpec]:
    for skip in skip_neighbours(source.skip, space):
        if len(skip) <= space.max_skipped_quantized:
            yield source.model_copy(update={"skip": skip})


def skip_neighbours(skip: LayerSkipSet, space: SearchSpace) -> list[LayerSkipSet]:
    """Sets with one sub-layer more or less; those first that add the cheapest or bring the dearest back."""
    ranking = space.ranking
    if ranking is None:
        return []
    here = positions_of(skip)
    more = sorted((p for p in ranking.candidates if p not in here), key=ranking.price)
    less = sorted(here, key=ranking.price, reverse=True)
    pairs = [position for pair in zip(more, less, strict=False) for position in pair]
    rest = [*more[len(less) :], *less[len(more) :]]
    return [skip_set_of(here ^ {position}) for position in (*pairs, *rest)]
