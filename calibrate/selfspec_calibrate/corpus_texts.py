"""The model's own answers as a table for lookups, each prompt scored with the other prompts' answers."""

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


def fit_corpus(traces: Sequence[Trace], *, prompts: bool = False, max_tokens: int = MAX_TOKENS) -> FittedArrays:
    """Makes the table of all traces' answers, and of those without each fold.

    Whoever has the table can read it. So it holds what the model said and not what it was asked, unless that is asked
    for: a calibration is passed on without its prompts.

    Args:
        traces: Plain traces of search prompts.
        prompts: Whether the prompts are in it as well, each with its answer as one text.
        max_tokens: Where there is more, each text is cut to its end.

    Returns:
        int32 arrays, about eight bytes per token.
    """

    def fit(chosen: Sequence[Trace]) -> dict[str, Tensor]:
        tokens, places = corpus_arrays(corpus_texts(chosen, prompts=prompts, max_tokens=max_tokens))
        return {TOKENS_NAME: torch.from_numpy(tokens), PLACES_NAME: torch.from_numpy(places)}

    return cross_fitted(traces, fit)


def corpus_texts(
    traces: Sequence[Trace], *, prompts: bool = False, max_tokens: int = MAX_TOKENS
) -> list[tuple[int, ...]]:
    """Different texts, the longest cut to their ends so that together they hold at most ``max_tokens``."""
    texts = list(dict.fromkeys((trace.prompt_ids if prompts else ()) + trace.output_ids for trace in traces))
    limit = _fair_length([len(text) for text in texts], max_tokens)
    return [text[-limit:] for text in texts] if limit else []


def _fair_length(lengths: Sequence[int], total: int) -> int:
    """The length to cut texts to, so that they fit and no shorter one is cut for a longer one's sake."""
    left = total
    for index, length in enumerate(sorted(lengths)):
        fair = left // (len(lengths) - index)
        if length > fair:
            return fair
        left -= length
    return max(lengths, default=0)
