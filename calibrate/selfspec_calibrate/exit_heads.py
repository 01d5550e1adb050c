"""Linear exit heads: ridge regression from a layer's output to the last layer's (Yom Din et al. 2303.09435).

Closed form, no gradients. Each head is fitted on all prompts, and once without each quarter of them, so that
every prompt can be scored with a head that never saw it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

import torch

from selfspec_calibrate.ridge import Gram
from selfspec_calibrate.trace_state import chunks, hidden_of, watching
from selfspec_runtime.drafts.early_exit import exit_head_name
from selfspec_runtime.families import text_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

    from selfspec_calibrate.trace import Trace
    from selfspec_runtime.target import Target

NUM_FOLDS = 4
STRENGTHS = (0.03, 0.1, 0.3, 1.0)
GRAM_BYTES = 2**30
"""Sums that are held at once; more layers take further passes over the traces."""


@dataclass(frozen=True)
class ExitHeads:
    """Fitted heads, by array name, in float32.

    Attributes:
        final: Fitted on all prompts; what a calibration file keeps.
        scoring: The same and each fold's; what :class:`~selfspec_calibrate.scoring.Scorer` wants.
    """

    final: Mapping[str, Tensor]
    scoring: Mapping[str, Tensor]


def fit_exit_heads(
    target: Target, traces: Sequence[Trace], layers: Sequence[int], *, strengths: Sequence[float] = STRENGTHS
) -> ExitHeads:
    """Fits heads for some exits, on prompt and generated tokens alike.

    It takes one pass over the traces, and about 30 x hidden^3 operations per exit for the solutions: milliseconds
    for a hidden size of 576, some 5 seconds on two CPU cores for 2,048.

    Args:
        target: The model.
        traces: Plain traces of at least two prompts.
        layers: Exit layers, ``1 .. num_layers - 1``.
        strengths: Ridge strengths to choose from, per exit, by the error on the first quarter of the prompts.

    Returns:
        The heads; none if the traces are of fewer than two prompts, where none could be scored honestly.
    """
    split = folds(traces)
    final: dict[str, Tensor] = {}
    by_fold: dict[str, Tensor] = {}
    if len(set(split)) > 1:
        for group in _groups(target, layers):
            grams = _accumulated(target, traces, split, group)
            for layer in group:
                own = {fold: grams[layer, fold] for fold in sorted(set(split))}
                heads = _fitted(own, strengths)
                final[exit_head_name(layer)] = heads.pop(None)
                by_fold |= {fold_name(layer, fold): head for fold, head in heads.items() if fold is not None}
    return ExitHeads(final, final | by_fold)


def folds(traces: Sequence[Trace]) -> list[int]:
    """The fold, 0 to 3, that each trace belongs to: in turn, kind after kind, and the same for equal prompts."""
    seen: dict[str, dict[str, None]] = defaultdict(dict)
    for trace in traces:
        seen[trace.kind][trace.prompt_id] = None
    in_order = [(kind, prompt_id) for kind, prompt_ids in seen.items() for prompt_id in prompt_ids]
    place = {key: index % NUM_FOLDS for index, key in enumerate(in_order)}
    return [place[trace.kind, trace.prompt_id] for trace in traces]


def fold_name(exit_layer: int, fold: int) -> str:
    """Array name of the head with which a fold is scored: the one fitted on the other folds."""
    return f"{exit_head_name(exit_layer)}.fold{fold}"


def fold_arrays(arrays: Mapping[str, Tensor], fold: int) -> Mapping[str, Tensor]:
    """The arrays as a plan names them, with the fold's own heads in the final ones' place."""
    suffix = f".fold{fold}"
    own = {name.removesuffix(suffix): array for name, array in arrays.items() if name.endswith(suffix)}
    return {**arrays, **own}


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
                gram = Gram.of(rows, final)
                grams[layer, fold] = grams[layer, fold] + gram if (layer, fold) in grams else gram
    return grams


def _fitted(grams: Mapping[int, Gram], strengths: Sequence[float]) -> dict[int | None, Tensor]:
    """The heads fitted without each fold, and without none (on everything)."""
    first, *others = grams
    rest = _without(grams, first)
    candidates = {strength: rest.fitted(strength) for strength in strengths}
    best = min(candidates, key=lambda strength: grams[first].error(candidates[strength]))
    heads: dict[int | None, Tensor] = {first: candidates[best], None: (rest + grams[first]).fitted(best)}
    return heads | {fold: _without(grams, fold).fitted(best) for fold in others}


def _without(grams: Mapping[int, Gram], left_out: int) -> Gram:
    """The sums over all folds but one; differences of sums would lose what is small."""
    return reduce(add, (gram for fold, gram in grams.items() if fold != left_out))
