"""Attention by torch's operators, with grouped query heads folded into the rows of one product."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor


def folded_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    scaling: float | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attend any number of queries to all keys that the mask shows; runs on any device.

    Args:
        query: ``[1, heads, n, head_dim]``.
        key: ``[1, kv_heads, live, head_dim]``.
        value: ``[1, kv_heads, live, value_dim]``.
        mask: Boolean (True = seen) or additive, ``[1, 1, n, live]``; None where all is seen.
        scaling: Factor on the scores; the inverse root of the head dimension by default.
        softcap: Bound on the scores, or None.
        sinks: ``[heads]``, a logit for each head that takes mass and gives nothing, or None.

    Returns:
        ``[1, n, heads, value_dim]``; zeros for a row that sees nothing.
    """
    batch, heads, rows, _dim = query.shape
    groups = heads // key.shape[1]
    folded = query.reshape(batch, key.shape[1], groups * rows, query.shape[3])
    mask = _folded_mask(mask, groups)
    if softcap is None and sinks is None:
        out = functional.scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    else:
        if sinks is not None:
            sinks = sinks.view(1, key.shape[1], groups, 1).expand(batch, -1, -1, rows)
        out = _explicit_attention(folded, key, value, mask, scaling=scaling, softcap=softcap, sinks=sinks)
    return out.reshape(batch, heads, rows, -1).transpose(1, 2).contiguous()


def _folded_mask(mask: Tensor | None, groups: int) -> Tensor | None:
    if mask is None or groups == 1 or mask.shape[2] == 1:
        return mask
    return mask.repeat(1, 1, groups, 1)


def _explicit_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    scaling: float | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    scores = torch.matmul(query, key.transpose(2, 3)).float()
    scores = scores * (scaling if scaling is not None else query.shape[3] ** -0.5)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    if sinks is not None:
        scores = torch.cat([scores, sinks.reshape(*scores.shape[:3], 1).float()], dim=3)
    # The softmax of nothing would be NaN.
    sees_nothing = scores.amax(dim=3, keepdim=True) == float("-inf")
    weights = scores.softmax(dim=3).masked_fill(sees_nothing, 0.0).to(value.dtype)
    return torch.matmul(weights[..., : key.shape[2]], value)
