"""Attention over the shared cache, registered with transformers under the name ``selfspec``.

Grouped-query heads are folded into the rows of one product, so keys and values are never repeated: stock
SDPA materialises the repeated heads for every pass over more than one row (transformers'
``integrations/sdpa_attention.py``), which is exactly the shape of a verification.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from selfspec_runtime.native.operations import attention, can_attend

if TYPE_CHECKING:
    from torch import Tensor, nn

ATTENTION_NAME = "selfspec"


def register_attention() -> None:
    """Makes ``attn_implementation="selfspec"`` known to transformers; calling it again changes nothing."""
    AttentionInterface.register(ATTENTION_NAME, grouped_attention)
    AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)


def grouped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attends ``n`` queries to all live keys.

    Args:
        module: The attention module, asked only whether it is causal.
        query: ``[1, heads, n, head_dim]``.
        key: ``[1, kv_heads, live, head_dim]``.
        value: ``[1, kv_heads, live, value_dim]``.
        attention_mask: Boolean (True = seen) or additive, ``[1, 1, n, live]``; None only where transformers
            left it out because it would be purely causal.
        scaling: Factor on the scores; the inverse root of the head dimension by default.
        softcap: Gemma 2's bound on the scores.
        s_aux: gpt-oss's attention sinks, ``[heads]``: a logit that takes mass and gives nothing.

    Returns:
        ``[1, n, heads, value_dim]``, and no weights.
    """
    attention_mask = _explicit(attention_mask, query, key, module)
    if s_aux is None and can_attend(query, key, value, attention_mask):
        scale = query.shape[3] ** -0.5 if scaling is None else scaling
        return attention(query, key, value, attention_mask, scale=scale, softcap=softcap), None
    batch, heads, rows, _dim = query.shape
    groups = heads // key.shape[1]
    folded = query.reshape(batch, key.shape[1], groups * rows, query.shape[3])
    mask = _folded_mask(attention_mask, groups)
    if softcap is None and s_aux is None:
        out = functional.scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    else:
        sinks = None if s_aux is None else s_aux.view(1, key.shape[1], groups, 1).expand(batch, -1, -1, rows)
        out = _explicit_attention(folded, key, value, mask, scaling=scaling, softcap=softcap, sinks=sinks)
    return out.reshape(batch, heads, rows, -1).transpose(1, 2).contiguous(), None


def _explicit(mask: Tensor | None, query: Tensor, key: Tensor, module: nn.Module) -> Tensor | None:
    """A missing mask means "causal", never "everything": silent bidirectional attention would be wrong."""
    if mask is not None or query.shape[2] == 1 or not getattr(module, "is_causal", True):
        return mask
    rows, live = query.shape[2], key.shape[2]
    columns = torch.arange(live, device=query.device)
    last = torch.arange(live - rows, live, device=query.device)
    return (columns[None, :] <= last[:, None])[None, None]


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
    weights = scores.softmax(dim=3).to(value.dtype)
    return torch.matmul(weights[..., : key.shape[2]], value)
