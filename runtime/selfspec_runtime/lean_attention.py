"""The attention of the Llama kind with one projection, whose heads the kernels norm and rotate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from selfspec_runtime.attention import grouped_attention
from selfspec_runtime.fast_linear import fused
from selfspec_runtime.lean_norm import LeanNorm
from selfspec_runtime.native.linear import KernelLinear
from selfspec_runtime.native.operations import LANES, HeadShape, NormWeight, project

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec_runtime.weight_arena import WeightArena


class LeanAttention(nn.Module):
    """Grouped-query attention with one projection for queries, keys and values.

    Args:
        attention: The original attention module.
        arena: Where its projections are copied to.
    """

    def __init__(self, attention: Any, arena: WeightArena) -> None:
        super().__init__()
        self.layer_idx: int = attention.layer_idx
        self.head_dim: int = attention.head_dim
        self.scaling: float = attention.scaling
        self.is_causal = True
        projections = [attention.q_proj, attention.k_proj, attention.v_proj]
        self.num_heads, self.num_kv_heads, _ = (p.out_features // self.head_dim for p in projections)
        self.qkv_proj = fused(projections, arena)
        self.o_proj = fused([attention.o_proj], arena)
        self.q_norm = LeanNorm(attention.q_norm) if hasattr(attention, "q_norm") else None
        self.k_norm = LeanNorm(attention.k_norm) if hasattr(attention, "k_norm") else None

    def forward(
        self,
        hidden_states: Tensor,
        *,
        norm: LeanNorm,
        attention_mask: Tensor | None,
        cache: Any,
        position_embeddings: tuple[Tensor, Tensor],
    ) -> Tensor:
        """Attends the normed ``[1, n, hidden]`` to everything in the cache."""
        is_native = self.can_be_native(hidden_states, norm, position_embeddings[0])
        heads = self._native_heads if is_native else self._torch_heads
        queries, keys, values = heads(hidden_states, norm, position_embeddings)
        if cache is not None:
            keys, values = cache.update(keys, values, self.layer_idx)
        attended, _ = grouped_attention(self, queries, keys, values, attention_mask, scaling=self.scaling)
        out: Tensor = self.o_proj(attended.reshape(*hidden_states.shape[:2], -1))
        return out

    @property
    def shape(self) -> HeadShape:
        """The heads as the kernels take them."""
        return HeadShape(self.num_heads, self.num_kv_heads, self.head_dim)

    @property
    def head_norms(self) -> tuple[NormWeight, NormWeight] | None:
        """Norms of every query and every key head, or None."""
        return None if self.q_norm is None or self.k_norm is None else (self.q_norm.described, self.k_norm.described)

    @property
    def is_on_kernels(self) -> bool:
        """Whether the projections and the heads are such as the kernels take."""
        projections = (self.qkv_proj, self.o_proj)
        return all(isinstance(each, KernelLinear) for each in projections) and self.head_dim % LANES == 0

    def can_be_native(self, hidden_states: Tensor, norm: LeanNorm, cosine: Tensor) -> bool:
        """Whether the kernels take this block."""
        if not self.is_on_kernels or hidden_states.shape[0] != 1 or cosine.shape[-1] != self.head_dim:
            return False
        kinds = {cosine.dtype, norm.weight.dtype, *(each.weight.dtype for each in self.head_norms or ())}
        return kinds == {hidden_states.dtype} and cast("KernelLinear", self.qkv_proj).fits(hidden_states)

    def _native_heads(
        self, hidden_states: Tensor, norm: LeanNorm, rotary: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        matrix: Any = self.qkv_proj.matrix
        return project(
            hidden_states, norm.described, matrix, shape=self.shape, rotary=rotary, head_norms=self.head_norms
        )

    def _torch_heads(
        self, hidden_states: Tensor, norm: LeanNorm, rotary: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        states = self.qkv_proj(norm(hidden_states)).view(*hidden_states.shape[:2], -1, self.head_dim)
        rotated, values = torch.split(states, [self.num_heads + self.num_kv_heads, self.num_kv_heads], dim=2)
        rotated = rotate(self._normed(rotated), *rotary).transpose(1, 2)
        queries, keys = torch.split(rotated, [self.num_heads, self.num_kv_heads], dim=1)
        return queries, keys, values.transpose(1, 2)

    def _normed(self, states: Tensor) -> Tensor:
        if self.q_norm is None or self.k_norm is None:
            return states
        queries, keys = torch.split(states, [self.num_heads, self.num_kv_heads], dim=2)
        return torch.cat([self.q_norm(queries), self.k_norm(keys)], dim=2)


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
