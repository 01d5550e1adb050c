"""From logits to the law of the next token: one function for the target and for every draft.

A draft that reports another law than it sampled from, or a target that is judged without its temperature,
changes what the model says. Here both go through `token_probs`, which gives every row the same bits whatever
rows stand beside it, so that a block of rows and a single step agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from selfspec_runtime.errors import NumericalError, UsageError
from selfspec_runtime.sampling import SamplingSettings

Warper = Callable[[Tensor, Tensor], Tensor]

# Rows whose top-p set is not inside this many candidates are sorted in full.
_TOP_P_CANDIDATES = 2048
# Half-precision logits tie often: room for what ties with the k-th largest.
_TIE_ROOM = 64
# The head's mass is rounded in float32: a row that near to the threshold is sorted in full.
_MASS_MARGIN = 1e-5


def token_probs(
    logits: Tensor,
    settings: SamplingSettings,
    *,
    degenerate: Literal["raise", "uniform_reject"] = "raise",
    warpers: Sequence[Warper] = (),
) -> Tensor:
    """Return the law that the settings make of each row: temperature, top-k, top-p, min-p, softmax.

    It is the law of transformers' warpers in the order of ``generate``: all tokens that tie with the k-th
    largest are kept, and of tokens that tie at the edge of top-p the higher ids are.

    Args:
        logits: ``[n, V]`` in any floating dtype, read in float32.
        settings: Not greedy.
        degenerate: What to do with a row that has a NaN, a +inf or nothing but -inf. ``raise`` is for the
            target. ``uniform_reject`` is for drafts, which must not stop the decoding: the row becomes the
            uniform law over V. Any draft law is lossless if it is both sampled from and used in the
            acceptance ratio, and this one is confident of nothing and nearly always rejected.
        warpers: Further filters to apply last, see `Processors.warpers`.

    Returns:
        float32 ``[n, V]``; rows sum to 1 up to rounding.

    Raises:
        UsageError: The settings are greedy.
        NumericalError: A degenerate row, under ``raise``.
    """
    if settings.greedy:
        raise UsageError("temperature is 0, which leaves no law to sample from: decode greedily instead.")
    scores = logits.float() / settings.temperature
    broken = ~scores.amax(dim=-1).isfinite()
    if not bool(broken.any()):
        return _law(scores, settings, warpers)
    if degenerate == "raise":
        raise NumericalError(_what_is_broken(logits, broken))
    scores = scores.masked_fill(broken[:, None], 0.0)
    return _law(scores, settings, warpers).masked_fill(broken[:, None], 1.0 / logits.shape[-1])


def greedy_tokens(logits: Tensor) -> Tensor:
    """Return the id of each row's largest logit, the lowest id among equals.

    Args:
        logits: ``[n, V]`` in any floating dtype.

    Returns:
        int64 ``[n]``.

    Raises:
        NumericalError: A row has a NaN or nothing but -inf.
    """
    largest = logits.amax(dim=-1)
    broken = largest.isnan() | largest.isneginf()
    if bool(broken.any()):
        raise NumericalError(_what_is_broken(logits, broken))
    return argmax_tokens(logits)


def argmax_tokens(logits: Tensor) -> Tensor:
    """Return `greedy_tokens` without the check, and so without a host read.

    Args:
        logits: ``[n, V]`` in any floating dtype.

    Returns:
        int64 ``[n]`` in 0..V-1; the id is arbitrary for a row with a NaN.
    """
    # On a CPU, max returns the first of equals and takes a third of the time that argmax takes.
    return logits.max(dim=-1).indices if logits.device.type == "cpu" else lowest_argmax(logits)


def lowest_argmax(logits: Tensor) -> Tensor:
    """Return each row's lowest id among its largest logits, on devices whose argmax does not promise that."""
    last = logits.shape[-1] - 1
    ids = torch.arange(last + 1, device=logits.device)
    return torch.where(logits == logits.amax(dim=-1, keepdim=True), ids, last).amin(dim=-1)


def filtered(scores: Tensor, settings: SamplingSettings) -> Tensor:
    """Return scores with what top-k, top-p and min-p drop at -inf, without a host read.

    Args:
        scores: ``[n, V]``, divided by the temperature already, finite but for -inf.
        settings: Not greedy.

    Returns:
        ``[n, V]``; a softmax makes it the law of `token_probs`.
    """
    return _filtered(scores, settings, ())


def _law(scores: Tensor, settings: SamplingSettings, warpers: Sequence[Warper]) -> Tensor:
    width = _num_candidates(settings, scores.shape[-1])
    if width == scores.shape[-1]:
        return _filtered(scores, settings, warpers).softmax(dim=-1)
    values, ids = _candidates(scores, width)
    # Summed over the candidates alone: a sum over a whole row may be split over threads, and so depend on n.
    head_mass = None if settings.top_k else scores.softmax(-1).gather(-1, ids).sum(-1, keepdim=True).clamp(max=1)
    law = torch.zeros_like(scores)
    law.scatter_(-1, ids, _filtered(values, settings, warpers, head_mass=head_mass).softmax(dim=-1))
    for row in (~_is_complete(values, settings, head_mass)).nonzero()[:, 0].tolist():
        law[row] = _filtered(scores[row : row + 1], settings, warpers).softmax(dim=-1)[0]
    return law


def _num_candidates(settings: SamplingSettings, vocab_size: int) -> int:
    if settings.top_k is not None:
        width = settings.top_k + _TIE_ROOM
    else:
        width = vocab_size if settings.top_p in (None, 1) else _TOP_P_CANDIDATES
    return width if 8 * width <= vocab_size else vocab_size


def _candidates(scores: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return the largest scores and their ids, ordered by id so that ties resolve as in a full row."""
    values, ids = scores.topk(width, dim=-1)
    ids, order = ids.sort(dim=-1)
    return values.gather(-1, order), ids


def _is_complete(values: Tensor, settings: SamplingSettings, head_mass: Tensor | None) -> Tensor:
    """Say for each row whether no token outside of the candidates can be kept; bool ``[n]``."""
    lowest = values.amin(dim=-1, keepdim=True)
    if head_mass is None:
        kept = values >= _kth_largest(values, settings.top_k or 1)
        return ~(kept & (values == lowest) & ~values.isneginf()).any(dim=-1)
    edge_mass = values.softmax(dim=-1).mul(head_mass).masked_fill(values > lowest, 0.0).sum(dim=-1)
    return 1 - head_mass[:, 0] + edge_mass <= 1 - (settings.top_p or 1.0) - _MASS_MARGIN


def _filtered(
    scores: Tensor, settings: SamplingSettings, warpers: Sequence[Warper], *, head_mass: Tensor | None = None
) -> Tensor:
    """Set what the settings drop to -inf; ``[n, K]``, a full row or its candidates."""
    if settings.top_k is not None and settings.top_k < scores.shape[-1]:
        scores = scores.masked_fill(scores < _kth_largest(scores, settings.top_k), -torch.inf)
    if settings.top_p is not None and settings.top_p < 1:
        scores = scores.masked_fill(_outside_top_p(scores, settings.top_p, head_mass), -torch.inf)
    if settings.min_p:
        probs = scores.softmax(dim=-1)
        scores = scores.masked_fill(probs < settings.min_p * probs.amax(dim=-1, keepdim=True), -torch.inf)
    no_ids = torch.empty((scores.shape[0], 0), dtype=torch.int64, device=scores.device)
    for warper in warpers:
        scores = warper(no_ids, scores)
    return scores


def _kth_largest(scores: Tensor, k: int) -> Tensor:
    return scores.topk(k, dim=-1).values[:, -1:]


def _outside_top_p(scores: Tensor, top_p: float, head_mass: Tensor | None) -> Tensor:
    # By values alone, because a stable sort with indices takes several times as long.
    ascending = scores.sort(dim=-1).values
    cumulative = ascending.softmax(dim=-1).cumsum(dim=-1)
    if head_mass is not None:
        cumulative = 1 - head_mass + head_mass * cumulative
    num_dropped = (cumulative[:, :-1] <= 1 - top_p).sum(dim=-1, keepdim=True)
    edge = ascending.gather(-1, num_dropped)
    below, tied = scores < edge, scores == edge
    num_tied_dropped = num_dropped - below.sum(dim=-1, keepdim=True)
    return below | (tied & (tied.cumsum(dim=-1) <= num_tied_dropped))


def _what_is_broken(logits: Tensor, broken: Tensor) -> str:
    row = int(broken.nonzero()[0, 0])
    seen = logits[row]
    found = {"NaN": seen.isnan(), "+inf": seen.isposinf(), "-inf": seen.isneginf()}
    counts = ", ".join(f"{int(where.sum())} {name}" for name, where in found.items())
    return (
        f"The logits of row {row} (of {logits.shape[0]}) hold {counts} among {seen.shape[0]} values of "
        f"{logits.dtype}, so no token can be chosen. Load the model in bfloat16 or float32, and check its "
        "weights and the processors in its generation config."
    )
