"""Plans to begin a search with: what the field uses, rescaled to the model, and what its sensitivities suggest."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from selfspec_calibrate.skip_ranking import SAVED_SHARES, SkipRanking, skip_set_of
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
    from collections.abc import Iterable, Iterator

    from selfspec_calibrate.search_space import SearchSpace
    from selfspec_runtime.drafts.first_of import PassSpec
    from selfspec_runtime.drafts.registry import AnySourceSpec

#: Depths of early exits, as shares of the layers: LayerSkip's checkpoints exit early (2404.16710), others cannot.
EXIT_DEPTHS = (0.25, 1 / 3, 0.5, 2 / 3, 0.75, 0.85, 0.95)

#: Sizes of ranked skip sets, as shares of the sub-layers, after the first three sizes.
RANKED_SHARES = (0.07, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6)

#: Published shares: Draft&Verify's sub-layers, two attentions to an MLP and past the middle (2309.08168); SWIFT's,
#: at odd layers (2410.06916); CLaSp's and KnapSpec's whole layers (2505.24196, 2602.20217).
LATE_MIDDLE_SHARE, LATE_MIDDLE = 0.425, 0.65
ODD_SHARE = 0.45
WHOLE_LAYER_SHARE = 0.25

NGRAM_BOUNDS = ((1, 3), (2, 4))
SUFFIX_BOUNDS = (1, 2)


def seed_plans(space: SearchSpace) -> tuple[DraftPlan, ...]:
    """Starting plans of every searched family, all different; plain decoding is not among them."""
    plans = []
    if "early_exit" in space.searched:
        plans += [*_planned(_exits(space), (2, 4), space)]
    if "layer_skip" in space.searched:
        plans += [*_planned(_skips(space), (2, 4), space)]
    if "quantized" in space.searched:
        plans += [*_planned(_quantized(space), (2, 3, 4), space)]
    if "ngram" in space.searched:
        plans += [*_planned(_ngrams(), (2, 4, 8), space)]
    if "suffix" in space.searched:
        plans += [*_planned(_suffixes(), (2, 4, 8), space)]
    if "ngram_first" in space.searched:
        plans += [*_planned(_composed(space), (2, 4), space)]
    return tuple(dict.fromkeys(plans))


def skip_seeds(space: SearchSpace) -> tuple[LayerSkipSet, ...]:
    """Starting skip sets, all different and none empty: ranked, by knapsack, by hidden states, and published."""
    ranking = space.ranking
    if ranking is None:
        return ()
    sizes = [1, 2, 3, *(round(share * len(ranking.losses)) for share in RANKED_SHARES)]
    most = min(space.max_skipped, len(ranking.candidates))
    ranked = [ranking.ranked(size) for size in sizes if size <= most]
    spread = [ranking.ranked(size, spread=1.0) for size in sizes if size <= most]
    knapsacks = [ranking.knapsack(share * ranking.total_s) for share in SAVED_SHARES]
    found = [*ranked, *knapsacks, *space.skip_fronts, *spread, *_published(ranking, space.num_layers)]
    return tuple(skip for skip in dict.fromkeys(found) if 0 < len(skip) <= space.max_skipped)


def _published(ranking: SkipRanking, num_layers: int) -> Iterator[LayerSkipSet]:
    count = LATE_MIDDLE_SHARE * 2 * num_layers
    near = sorted(range(1, num_layers - 1), key=lambda layer: abs(layer + 0.5 - LATE_MIDDLE * num_layers))
    attentions, mlps = near[: round(count * 2 / 3)], near[: round(count / 3)]
    yield LayerSkipSet(attention=frozenset(attentions), mlp=frozenset(mlps))
    odd = range(1, num_layers - 1, 2)
    yield skip_set_of([2 * layer + kind for layer in odd for kind in (0, 1)][: int(ODD_SHARE * 2 * (num_layers - 2))])
    inner = range(1, num_layers - 1)
    cheapest = sorted(inner, key=lambda layer: ranking.losses[2 * layer] + ranking.losses[2 * layer + 1])
    whole = frozenset(cheapest[: round(WHOLE_LAYER_SHARE * num_layers)])
    yield LayerSkipSet(attention=whole, mlp=whole)


def _exits(space: SearchSpace) -> Iterator[PassSpec]:
    layers = dict.fromkeys(min(max(round(d * space.num_layers), 1), space.num_layers - 1) for d in EXIT_DEPTHS)
    yield from (EarlyExitSpec(exit_layer=layer) for layer in layers)
    fitted = space.linear_exits
    nearest = [min(fitted, key=lambda other: abs(other - layer)) for layer in layers] if fitted else []
    for layer in dict.fromkeys(nearest):
        yield EarlyExitSpec(exit_layer=layer, head="linear")
        yield from (EarlyExitSpec(exit_layer=layer, head="linear", rank=rank) for rank in space.linear_ranks[-1:])


def _skips(space: SearchSpace) -> Iterator[PassSpec]:
    yield from (LayerSkipSpec(skip=skip) for skip in skip_seeds(space))


def _quantized(space: SearchSpace) -> Iterator[PassSpec]:
    yield from (QuantizedSpec(quantize_head=head) for head in (False, True))
    if space.ranking is not None:
        yield QuantizedSpec(skip=space.ranking.ranked(1))


def _ngrams() -> Iterator[NgramSpec]:
    yield from (NgramSpec(min_match=low, max_match=high) for low, high in NGRAM_BOUNDS)


def _suffixes() -> Iterator[SuffixSpec]:
    yield from (SuffixSpec(min_match=low) for low in SUFFIX_BOUNDS)


def _composed(space: SearchSpace) -> Iterator[AnySourceSpec]:
    ngrams = _ngrams() if "ngram" in space.lookup_families else ()
    suffixes = [*_suffixes()][-1:] if "suffix" in space.lookup_families else []
    for then, lookup in product(_cheapest_passes(space), (*ngrams, *suffixes)):
        limited = lookup.model_copy(update={"num_draft_tokens": space.max_draft_tokens})
        yield NgramFirstSpec.model_validate({"ngram": limited, "then": then})


def _cheapest_passes(space: SearchSpace) -> Iterator[PassSpec]:
    """One source of each family that drafts by passes: the one that most often agrees with the target."""
    if "quantized" in space.pass_families:
        yield QuantizedSpec()
    if space.ranking is not None and "layer_skip" in space.pass_families:
        yield LayerSkipSpec(skip=space.ranking.ranked(max(space.num_layers // 5, 1)))
    if "early_exit" in space.pass_families:
        yield list(_exits(space))[-1]


def _planned(sources: Iterable[AnySourceSpec], drafts: Iterable[int], space: SearchSpace) -> Iterator[DraftPlan]:
    counts = sorted({min(count, space.max_draft_tokens) for count in drafts})
    for source in sources:
        yield from (DraftPlan(source=source, controller=FixedSpec(num_draft_tokens=count)) for count in counts)
