"""The kernels as custom operators: Triton on CUDA, the torch reference on a CPU, shapes alone on meta tensors.

    selfspec::draft_token        logits of a draft -> its token, and the law that it was drawn from
    selfspec::rejection_verdict  drafted tokens, their logits and laws, target logits -> verdict
    selfspec::shared_tokens      logits -> tokens in match mode
    selfspec::match_verdict      drafted tokens, target logits -> verdict in match mode
    selfspec::greedy_tokens      logits -> likeliest tokens
    selfspec::greedy_verdict     drafted tokens, target logits -> greedy verdict

Verdicts and laws are explained in `verdicts` and `layout`, the arguments there and in `row_law`. Nothing is read
on the host by the CUDA implementations, so they can be captured; all that changes from round to round, positions
included, comes in tensors, and no argument is a number. On a CPU a draft's law is computed again from its logits, and
the laws handed around stay empty.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from selfspec_runtime.kernels import reference, row_law, verdicts
from selfspec_runtime.kernels.interpreter import is_interpreted
from selfspec_runtime.kernels.layout import law_width
from selfspec_runtime.kernels.placement import on_its_device
from selfspec_runtime.kernels.verdicts import LawRows


@torch.library.custom_op("selfspec::draft_token", mutates_args=())
@on_its_device
def draft_token(
    logits: Tensor,
    params: Tensor,
    seed: Tensor,
    position: Tensor,
    round_start: Tensor,
    top_k: bool,
    top_p: bool,
    token_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Draw a draft token from ``[1, V]``: int64 ``[1]``, and the law that it was drawn from, ``[1, law_width(V)]``."""
    if _by_reference(logits):
        settings = reference.settings_of(params, top_k=top_k, top_p=top_p)
        drawn = reference.draft_token(logits, settings, seed=seed, position=position, round_start=round_start)
        return reference.placed(drawn, token_ids), logits.new_zeros((1, law_width(logits.shape[1])), dtype=torch.int64)
    laws = row_law.row_laws(logits, params, top_k=top_k, top_p=top_p)
    row = LawRows(logits, laws, token_ids=token_ids)
    return verdicts.draft_token(row, seed=seed, position=position, round_start=round_start), laws


@torch.library.custom_op("selfspec::rejection_verdict", mutates_args=())
@on_its_device
def rejection_verdict(
    draft_ids: Tensor,
    draft_logits: Tensor | None,
    draft_laws: Tensor | None,
    target_logits: Tensor,
    params: Tensor,
    seeds: Tensor,
    first_position: Tensor,
    top_k: bool,
    top_p: bool,
    index_of: Tensor | None = None,
) -> Tensor:
    """Decide a block of ``g`` drafted tokens by ``g + 1`` target rows: a verdict, int64 ``[3]``.

    ``draft_logits`` and ``draft_laws`` are those of `draft_token`, row by row, or None for tokens that were chosen
    without chance; ``index_of`` is the place of each token in a draft over a part of the vocabulary, -1 for none.
    """
    if _by_reference(target_logits):
        settings = reference.settings_of(params, top_k=top_k, top_p=top_p)
        draft_probs, target_probs = None, reference.laws(target_logits, settings)
        if draft_logits is not None:
            draft_probs = reference.widened(reference.laws(draft_logits[: draft_ids.shape[0]], settings), index_of)
        decided = reference.rejection_verdict(
            draft_ids, draft_probs, target_probs, seeds=seeds, first_position=first_position
        )
        return torch.tensor([*decided, reference.has_broken_law(target_logits, params)])
    target = LawRows(target_logits, row_law.row_laws(target_logits, params, top_k=top_k, top_p=top_p))
    draft_rows = None
    if draft_logits is not None and draft_laws is not None:
        draft_rows = LawRows(draft_logits, draft_laws, index_of=index_of)
    return verdicts.rejection_verdict(draft_ids, draft_rows, target, seeds=seeds, first_position=first_position)


@torch.library.custom_op("selfspec::shared_tokens", mutates_args=())
@on_its_device
def shared_tokens(
    logits: Tensor,
    params: Tensor,
    seeds: Tensor,
    first_position: Tensor,
    top_k: bool,
    top_p: bool,
    token_ids: Tensor | None = None,
) -> Tensor:
    """Draw the tokens of rows ``[n, V]`` as match mode does, int64 ``[n]``; a row that is no law counts as uniform."""
    if _by_reference(logits):
        probs = reference.laws(logits, reference.settings_of(params, top_k=top_k, top_p=top_p))
        return reference.shared_tokens(probs, token_ids, seeds=seeds, first_position=first_position)
    laws = row_law.row_laws(logits, params, top_k=top_k, top_p=top_p)
    rows = LawRows(logits, laws, token_ids=token_ids)
    return verdicts.tokens_of(verdicts.shared_best(rows, seeds=seeds, first_position=first_position))


@torch.library.custom_op("selfspec::match_verdict", mutates_args=())
@on_its_device
def match_verdict(
    draft_ids: Tensor,
    target_logits: Tensor,
    params: Tensor,
    seeds: Tensor,
    first_position: Tensor,
    top_k: bool,
    top_p: bool,
) -> Tensor:
    """Decide a block in match mode: a verdict, int64 ``[3]``."""
    if _by_reference(target_logits):
        probs = reference.laws(target_logits, reference.settings_of(params, top_k=top_k, top_p=top_p))
        tokens = reference.shared_tokens(probs, None, seeds=seeds, first_position=first_position)
        decided = reference.prefix_verdict(draft_ids, tokens)
        return torch.tensor([*decided, reference.has_broken_law(target_logits, params)])
    laws = row_law.row_laws(target_logits, params, top_k=top_k, top_p=top_p)
    best = verdicts.shared_best(LawRows(target_logits, laws), seeds=seeds, first_position=first_position)
    return verdicts.prefix_verdict(draft_ids, best, laws)


@torch.library.custom_op("selfspec::greedy_tokens", mutates_args=())
@on_its_device
def greedy_tokens(logits: Tensor) -> Tensor:
    """Choose each row's largest logit ``[n, V]``, int64 ``[n]``: the lowest id among equals, the first NaN if any."""
    if _by_reference(logits):
        return reference.greedy_tokens(logits)
    return verdicts.tokens_of(verdicts.largest_best(logits))


@torch.library.custom_op("selfspec::greedy_verdict", mutates_args=())
@on_its_device
def greedy_verdict(draft_ids: Tensor, target_logits: Tensor) -> Tensor:
    """Keep drafted tokens while they are the target's likeliest: a verdict, int64 ``[3]``."""
    if _by_reference(target_logits):
        tokens = reference.greedy_tokens(target_logits)
        decided = reference.prefix_verdict(draft_ids, tokens)
        return torch.tensor([*decided, reference.has_no_largest(target_logits)])
    return verdicts.prefix_verdict(draft_ids, verdicts.largest_best(target_logits))


def _by_reference(logits: Tensor) -> bool:
    return logits.device.type != "cuda" and not is_interpreted()


@draft_token.register_fake
def _drawn_without_data(logits: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    laws = logits.new_empty((1, law_width(logits.shape[1])), dtype=torch.int64)
    return logits.new_empty((1,), dtype=torch.int64), laws


def _tokens_without_data(logits: Tensor, *_: Any, **__: Any) -> Tensor:
    return logits.new_empty((logits.shape[0],), dtype=torch.int64)


def _verdict_without_data(draft_ids: Tensor, *_: Any, **__: Any) -> Tensor:
    return draft_ids.new_empty((3,), dtype=torch.int64)


shared_tokens.register_fake(_tokens_without_data)
greedy_tokens.register_fake(_tokens_without_data)
rejection_verdict.register_fake(_verdict_without_data)
match_verdict.register_fake(_verdict_without_data)
greedy_verdict.register_fake(_verdict_without_data)
