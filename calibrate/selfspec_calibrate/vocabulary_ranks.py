"""Which tokens a model says most often: what a reduced draft head keeps (FR-Spec, Zhao et al. 2502.14856)."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING

import torch

from selfspec_calibrate.folds import FittedArrays, cross_fitted
from selfspec_runtime.draft_head import RANKS_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from selfspec_calibrate.trace import Trace

#: Sizes worth a try, as shares of the vocabulary; whole tiles.
SHARES = (1 / 32, 1 / 16, 1 / 8, 1 / 4)
ROW_BLOCK = 64


def fit_vocabulary_ranks(
    traces: Sequence[Trace], vocab_size: int, *, always: Sequence[int] = (), most: int | None = None
) -> FittedArrays:
    """Ranks tokens on all prompts, and without each fold.

    Args:
        traces: Plain traces.
        vocab_size: The model's tokens.
        always: Tokens that come first whatever was said, such as those that end a text.
        most: Tokens to rank, or None for half of the vocabulary; a head over more would save little.

    Returns:
        int32 ``[most]`` under `RANKS_NAME`, four bytes per token.
    """
    width = -(-vocab_size // 2) if most is None else most

    def fit(chosen: Sequence[Trace]) -> dict[str, Tensor]:
        ranked = rank_tokens(chosen, vocab_size, always=always)[:width]
        return {RANKS_NAME: torch.tensor(ranked, dtype=torch.int32)}

    return cross_fitted(traces, fit)


def rank_tokens(traces: Sequence[Trace], vocab_size: int, *, always: Sequence[int] = ()) -> list[int]:
    """All tokens, the most useful to a draft first.

    What was generated counts before what was only read in prompts, the count before the id. Tokens that were never
    seen follow by id: byte-pair encodings number tokens by how often they were seen when they were learnt.

    Args:
        traces: Plain traces.
        vocab_size: The model's tokens.
        always: Tokens that come first.
    """
    said = Counter(chain.from_iterable(trace.output_ids for trace in traces))
    read = Counter(chain.from_iterable(trace.prompt_ids for trace in traces))
    by_use = sorted(range(vocab_size), key=lambda token: (-said[token], -read[token], token))
    return list(dict.fromkeys([*always, *by_use]))


def vocab_sizes(vocab_size: int) -> tuple[int, ...]:
    """Numbers of tokens worth a try, ascending; none for a vocabulary too small to be worth cutting."""
    sizes = {round(share * vocab_size / ROW_BLOCK) * ROW_BLOCK for share in SHARES}
    return tuple(sorted(size for size in sizes if 0 < size < vocab_size))
