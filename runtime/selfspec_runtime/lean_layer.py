"""Decoder layers of the Llama kind with fused projections and few operations.

Stock layers run some forty small operations each, which on a CPU cost a small model as much as its
multiplications. These run sixteen, compute the same function, and answer to the same names, so that skip sets,
exits and quantised copies work on them as on the originals. Only models that selfspec loaded itself get them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from selfspec_runtime.attention import grouped_attention
from selfspec_runtime.packed_linear import PackedLinear, is_packable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

#: Layers of exactly this computation: pre-norm RMSNorm attention with rotary positions, then a gated SiLU MLP.
LEAN_FAMILIES = ("LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer")


class LeanLayer(nn.Module):
    """One decoder layer.

    Args:
        layer: The original, of a family in :data:`LEAN_FAMILIES`; its norms are shared, its projections copied.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.input_layernorm = LeanNorm(layer.input_layernorm)
        self.self_attn = LeanAttention(layer.self_attn)
        self.post_attention_layernorm = LeanNorm(layer.post_attention_layernorm)
        self.mlp = LeanMLP(layer.mlp)
        if hasattr(layer, "attention_type"):
            self.attention_type = layer.attention_type

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Any = None,
        use_cache: bool | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        past_key_values: Any = None,
        **_: Any,
    ) -> Tensor:
        """Maps ``[1, n, hidden]`` to the same shape; arguments as transformers passes them to a layer."""
        del position_ids, use_cache
        assert position_embeddings is not None, "a Llama-like model passes rotary tables to its layers"
        attended = self.self_attn(
            self.input_layernorm(hidden_states),
            attention_mask=attention_mask,
            cache=past_key_values if cache is None else cache,
            position_embeddings=position_embeddings,
        )
        hidden_states = hidden_states + attended
        out: Tensor = hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))
        return out


class LeanAttention(nn.Module):
    """Grouped-query attention with one projection for queries, keys and values.

    Args:
        attention: The original attention module.
    """

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.layer_idx: int = attention.layer_idx
        self.head_dim: int = attention.head_dim
        self.scaling: float = attention.scaling
        self.is_causal = True
        projections = [attention.q_proj, attention.k_proj, attention.v_proj]
        self.num_heads, self.num_kv_heads, _ = (p.out_features // self.head_dim for p in projections)
        self.qkv_proj = fused(projections)
        self.o_proj = fused([attention.o_proj])
        self.q_norm = LeanNorm(attention.q_norm) if hasattr(attention, "q_norm") else None
        self.k_norm = LeanNorm(attention.k_norm) if hasattr(attention, "k_norm") else None

    def forward(
        self,
        hidden_states: Tensor,
        *,
        attention_mask: Tensor | None,
        cache: Any,
        position_embeddings: tuple[Tensor, Tensor],
    ) -> Tensor:
        """Attends ``[1, n, hidden]`` to everything in the cache."""
        batch, rows, _ = hidden_states.shape
        states = self.qkv_proj(hidden_states).view(batch, rows, -1, self.head_dim)
        rotated, values = torch.split(states, [self.num_heads + self.num_kv_heads, self.num_kv_heads], dim=2)
        rotated = rotate(self._normed(rotated), *position_embeddings).transpose(1, 2)
        queries, keys = torch.split(rotated, [self.num_heads, self.num_kv_heads], dim=1)
        values = values.transpose(1, 2)
        if cache is not None:
            keys, values = cache.update(keys, values, self.layer_idx)
        attended, _ = grouped_attention(self, queries, keys, values, attention_mask, scaling=self.scaling)
        out: Tensor = self.o_proj(attended.reshape(batch, rows, -1))
        return out

    def _normed(self, states: Tensor) -> Tensor:
        if self.q_norm is None or self.k_norm is None:
            return states
        queries, keys = torch.split(states, [self.num_heads, self.num_kv_heads], dim=2)
        return torch.cat([self.q_norm(queries), self.k_norm(keys)], dim=2)


class LeanMLP(nn.Module):
    """A gated SiLU MLP with one projection for gate and up.

    Args:
        mlp: The original MLP.
    """

    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self.gate_up_proj = fused([mlp.gate_proj, mlp.up_proj])
        self.down_proj = fused([mlp.down_proj])

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Maps ``[1, n, hidden]`` to the same shape."""
        gate, up = self.gate_up_proj(hidden_states).chunk(2, dim=-1)
        out: Tensor = self.down_proj(functional.silu(gate).mul_(up))
        return out


class LeanNorm(nn.Module):
    """RMSNorm as one operation.

    Args:
        norm: The original; its weight is shared.
    """

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight = norm.weight
        self.eps: float = norm.variance_epsilon

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Normalises the last dimension."""
        return functional.rms_norm(hidden_states, self.weight.shape, self.weight, self.eps)


def rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Applies rotary positions (Su et al. 2104.09864).

    Args:
        states: ``[1, n, heads, head_dim]``.
        cos: ``[1, n, head_dim]``.
        sin: ``[1, n, head_dim]``.
    """
    half = states.shape[-1] // 2
    turned = torch.cat((-states[..., half:], states[..., :half]), dim=-1)
    return torch.addcmul(states * cos.unsqueeze(2), turned, sin.unsqueeze(2))


def fused(linears: Sequence[nn.Linear]) -> PackedLinear:
    """One packed projection for several of the same input; their outputs follow one another."""
    bias = None if linears[0].bias is None else torch.cat([linear.bias for linear in linears])
    return PackedLinear(torch.cat([linear.weight for linear in linears]), bias)


def can_be_lean(layer: nn.Module) -> bool:
    """Whether a layer's family and all its projections allow it."""
    if type(layer).__name__ not in LEAN_FAMILIES:
        return False
    mlp: Any = layer.mlp
    linears = [module for module in layer.modules() if "Linear" in type(module).__name__]
    gated = type(mlp.act_fn).__name__ in ("SiLU", "SiLUActivation")
    return gated and len(linears) == 7 and all(is_packable(linear) for linear in linears)
