"""Attention over the shared cache, registered with transformers under the name ``selfspec``.

Grouped-query heads are folded into the rows of one product, so keys and values are never repeated: stock
SDPA materialises the repeated heads for every pass over more than one row (transformers'
``integrations/sdpa_attention.py``), which is exactly the shape of a verification. Passes over few rows on CUDA
go to kernels that read what is live and no more (`kernels.attention_kernels`), few rows on a CPU to the compiled
ones (`native.operations`), everything else to torch (`folded_attention`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from selfspec_runtime.folded_attention import folded_attention
from selfspec_runtime.kernels import attention_operator
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
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    if attention_operator.serves(query, key, value, attention_mask):
        return attention_operator.decode_attention(query, key, value, attention_mask, s_aux, scale, softcap), None
    if s_aux is None and can_attend(query, key, value, attention_mask):
        return attention(query, key, value, attention_mask, scale=scale, softcap=softcap), None
    return folded_attention(query, key, value, attention_mask, scaling=scale, softcap=softcap, sinks=s_aux), None


def _explicit(mask: Tensor | None, query: Tensor, key: Tensor, module: nn.Module) -> Tensor | None:
    """A missing mask means "causal", never "everything": silent bidirectional attention would be wrong."""
    if mask is not None or query.shape[2] == 1 or not getattr(module, "is_causal", True):
        return mask
    rows, live = query.shape[2], key.shape[2]
    columns = torch.arange(live, device=query.device)
    last = torch.arange(live - rows, live, device=query.device)
    return (columns[None, :] <= last[:, None])[None, None]
