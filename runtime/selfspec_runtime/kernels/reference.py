"""The operators on a CPU, put together from the torch reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from selfspec_runtime.acceptance import (
    accept_probs,
    gumbel_token,
    plain_token,
    residual_probs,
    sample_token,
)
from selfspec_runtime.kernels import layout
from selfspec_runtime.law import argmax_tokens, token_probs
from selfspec_runtime.noise import Stream, gumbel, gumbel_at, uniform_scalar
from selfspec_runtime.sampling import SamplingSettings

if TYPE_CHECKING:
    from torch import Tensor


def settings_of(params: Tensor, *, top_k: bool, top_p: bool) -> SamplingSettings:
    """Return the settings that `law_params` was given, without a seed."""
    values = params.tolist()
    return SamplingSettings(
        values[layout.PARAM_TEMPERATURE],
        top_k=int(values[layout.PARAM_TOP_K]) if top_k else None,
        top_p=values[layout.PARAM_TOP_P] if top_p else None,
        min_p=values[layout.PARAM_MIN_P] or None,
    )


def laws(logits: Tensor, settings: SamplingSettings) -> Tensor:
    """Return float32 ``[n, V]``; a row that is no law becomes the uniform one."""
    return token_probs(logits, settings, degenerate="uniform_reject")


def draft_token(
    logits: Tensor, settings: SamplingSettings, *, seed: Tensor, position: Tensor, round_start: Tensor
) -> Tensor:
    """Draw a draft token from ``[1, V]``, int64 ``[1]``."""
    u = uniform_scalar(int(seed), int(position), Stream.DRAFT, salt=int(round_start))
    return torch.tensor([sample_token(laws(logits, settings)[0], u)])


def rejection_verdict(
    draft_ids: Tensor, draft_probs: Tensor | None, target_probs: Tensor, *, seeds: Tensor, first_position: Tensor
) -> tuple[int, int]:
    """Return how many drafted tokens stand and the token after them; each row has its seed."""
    keys, position = seeds.expand(target_probs.shape[0]).tolist(), int(first_position)
    wanted = accept_probs(draft_ids, draft_probs, target_probs).tolist()
    row = 0
    while row < len(wanted) and uniform_scalar(keys[row], position + row, Stream.ACCEPT) < wanted[row]:
        row += 1
    law = target_probs[row]
    if row < len(wanted):
        law = residual_probs(None if draft_probs is None else draft_probs[row], int(draft_ids[row]), law)
    return row, plain_token(law, seed=keys[row], position=position + row)


def shared_tokens(probs: Tensor, token_ids: Tensor | None, *, seeds: Tensor, first_position: Tensor) -> Tensor:
    """Draw each row's token with the noise that draft and target share, int64 ``[n]``."""
    drawn = []
    for row, seed in enumerate(seeds.expand(probs.shape[0]).tolist()):
        position = int(first_position) + row
        if token_ids is None:
            noise = gumbel(seed, position, Stream.SHARED, probs.shape[1])
        else:
            noise = gumbel_at(seed, position, Stream.SHARED, token_ids)
        drawn.append(gumbel_token(probs[row], noise))
    return placed(torch.tensor(drawn, dtype=torch.long), token_ids)


def prefix_verdict(draft_ids: Tensor, tokens: Tensor) -> tuple[int, int]:
    """Return how many drafted tokens are the target's own, and the target's token after them."""
    num_accepted = int((draft_ids == tokens[:-1]).long().cumprod(dim=0).sum())
    return num_accepted, int(tokens[num_accepted])


def greedy_tokens(logits: Tensor) -> Tensor:
    """Choose each row's largest logit, int64 ``[n]``."""
    return argmax_tokens(logits.float())


def placed(columns: Tensor, token_ids: Tensor | None) -> Tensor:
    """Return the tokens of columns of a draft over a part of the vocabulary."""
    return columns if token_ids is None else token_ids[columns]


def widened(probs: Tensor, index_of: Tensor | None) -> Tensor:
    """Return laws over a part of the vocabulary ``[g, n]`` as laws over the whole ``[g, V]``."""
    if index_of is None:
        return probs
    return probs[:, index_of.clamp(min=0).long()].masked_fill(index_of < 0, 0.0)


def has_broken_law(logits: Tensor, params: Tensor) -> bool:
    """Whether a row has, after the division by the temperature, a NaN, a +inf or nothing but -inf."""
    largest = (logits.float() / float(params[layout.PARAM_TEMPERATURE])).amax(dim=-1)
    return not bool(largest.isfinite().all())


def has_no_largest(logits: Tensor) -> bool:
    """Whether a row has a NaN or nothing but -inf."""
    largest = logits.amax(dim=-1)
    return bool((largest.isnan() | largest.isneginf()).any())
