"""Linear exit heads: ridge regression from a layer's output to the last layer's (Yom Din et al. 2303.09435).

Closed form, no gradients, and of full or of low rank. Each head is fitted on all prompts, and once without each quarter
of them, so that every prompt can be scored with a head that never saw it.
"""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import TYPE_CHECKING

import torch

from selfspec_calibrate.folds import NUM_FOLDS, FittedArrays, folds, in_fold
from selfspec_calibrate.ridge import Gram
from selfspec_calibrate.trace_state import chunks, hidden_of, watching
from selfspec_runtime.drafts.early_exit import exit_head_name, factor_names
from selfspec_runtime.families import text_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

    from selfspec_calibrate.trace import Trace
    from selfspec_runtime.target import Target

STRENGTHS = (0.03, 0.1, 0.3, 1.0)
GRAM_BYTES = 2**30
"""Sums that are held at once; more layers take further passes over the traces."""


def fit_exit_heads(
    target: Target,
    traces: Sequence[Trace],
    layers: Sequence[int],
    *,
    strengths: Sequence[float] = STRENGTHS,
    rank: int | None = None,
    whole: bool = True,
) -> FittedArrays:
    """Fits heads for some exits, on prompt and generated tokens alike.

    Rows are summed as they come and not kept. It takes one pass over the traces for as many exits as `GRAM_BYTES`
    allows, two matrices for each exit and quarter: one exit at a time for a hidden size of 4,096. The solutions take
    about 30 x hidden^3 operations per exit: milliseconds for a hidden size of 576, some 5 seconds on two CPU cores for
    2,048; low ranks add little.

    Args:
        target: The model.
        traces: Plain traces of at least two prompts.
        layers: Exit layers, ``1 .. num_layers - 1``.
        strengths: Ridge strengths to choose from, per exit, by the error on the first quarter of the prompts.
        rank: Largest rank of factored heads, or None for none.
        whole: Whether heads of full rank are wanted.

    Returns:
        The heads in the model's dtype; none if the traces are of fewer than two prompts, where none could be scored
        honestly.
    """
    split = folds(traces)
    final: dict[str, Tensor] = {}
    by_fold: dict[str, Tensor] = {}
    if len(set(split)) > 1:
        for group in _groups(target, layers):
            grams = _accumulated(target, traces, split, group)
            for layer in group:
                own = {fold: grams.pop((layer, fold)) for fold in sorted(set(split))}
                strength = _best_strength(own, strengths)
                for fold in (None, *own):
                    heads = _heads(layer, _without(own, fold), strength, rank, whole=whole)
                    kept = {name: head.to(target.dtype) for name, head in heads.items()}
                    if fold is None:
                        final |= kept
                    else:
                        by_fold |= {in_fold(name, fold): head for name, head in kept.items()}
    return FittedArrays(final, final | by_fold)


def hidden_size(target: Target) -> int:
    """Width of a hidden state."""
    return int(text_config(target.model.config).hidden_size)


def _groups(target: Target, layers: Sequence[int]) -> Iterator[Sequence[int]]:
    """Layers whose sums fit into the memory allowed for them."""
    width = hidden_size(target)
    size = max(GRAM_BYTES // (NUM_FOLDS * 2 * 4 * width * width), 1)
    for start in range(0, len(layers), size):
        yield layers[start : start + size]


def _accumulated(
    target: Target, traces: Sequence[Trace], split: Sequence[int], layers: Sequence[int]
) -> dict[tuple[int, int], Gram]:
    """The sums of each layer and fold."""
    program, outs = watching(target, [*(layer - 1 for layer in layers), target.num_layers - 1])
    grams: dict[tuple[int, int], Gram] = {}
    for trace, fold in zip(traces, split, strict=True):
        ids = torch.tensor(trace.input_ids, device=target.device)
        cache = target.new_cache(capacity=len(ids))
        for start, chunk in chunks(ids):
            target.advance(chunk, cache, start=start, program=program)
            # The first token is an attention sink in most models: a hidden state like no other's.
            *hidden, final = (hidden_of(out)[0, 1 if start == 0 else 0 :] for out in outs)
            for layer, rows in zip(layers, hidden, strict=True):
                if (layer, fold) not in grams:
                    grams[layer, fold] = Gram.empty(rows.shape[1], rows.device)
                grams[layer, fold].take_in(rows, final)
    return grams


def _best_strength(grams: Mapping[int, Gram], strengths: Sequence[float]) -> float:
    """The strength that errs least on the first fold, fitted on the others."""
    first = min(grams)
    rest = _without(grams, first)
    return min(strengths, key=lambda strength: grams[first].error(rest.fitted(strength)))


def _heads(layer: int, gram: Gram, strength: float, rank: int | None, *, whole: bool) -> dict[str, Tensor]:
    heads = {exit_head_name(layer): gram.fitted(strength)} if whole else {}
    if rank is not None:
        heads |= zip(factor_names(layer), gram.fitted_low_rank(strength, rank), strict=True)
    return heads


def _without(grams: Mapping[int, Gram], left_out: int | None) -> Gram:
    """The sums over all folds but one, or over all; differences of sums would lose what is small."""
    return reduce(add, (gram for fold, gram in grams.items() if fold != left_out))
