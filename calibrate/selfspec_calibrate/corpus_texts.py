"""The calibration's texts as a table for lookups, each prompt scored with the other prompts' texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from selfspec_calibrate.folds import FittedArrays, cross_fitted
from selfspec_runtime.drafts.corpus import PLACES_NAME, TOKENS_NAME, corpus_arrays

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from selfspec_calibrate.trace import Trace

#: Tokens that a table holds at most: a megabyte.
MAX_TOKENS = 2**17


def fit_corpus(traces: Sequence[Trace], *, max_tokens: int = MAX_TOKENS) -> FittedArrays:
    """Makes the table of all traces' texts, and of those without each fold.

    The table holds what was read and said, as token ids: whoever has the calibration's arrays can read the prompts.

    Args:
        traces: Plain traces of search prompts; a text is a prompt and its answer.
        max_tokens: Where there is more, each text is cut to its end, where the answer is.

    Returns:
        int32 arrays, about eight bytes per token.
    """

    def fit(chosen: Sequence[Trace]) -> dict[str, Tensor]:
        tokens, places = corpus_arrays(corpus_texts(chosen, max_tokens=max_tokens))
        return {TOKENS_NAME: torch.from_numpy(tokens), PLACES_NAME: torch.from_numpy(places)}

    return cross_fitted(traces, fit)


def corpus_texts(traces: Sequence[Trace], *, max_tokens: int = MAX_TOKENS) -> list[tuple[int, ...]]:
    """Different texts, so that together they hold at most ``max_tokens``."""
    texts = list(dict.fromkeys(trace.prompt_ids + trace.output_ids for trace in traces))
    fair = max_tokens
    lengths = sorted(len(text) for text in texts)
    left = max_tokens
    for index, length in enumerate(lengths):
        fair = left // (len(lengths) - index)
        if length > fair:
            break
        left -= length
    return [text[-fair:] for text in texts if fair] if sum(lengths) > max_tokens else texts
