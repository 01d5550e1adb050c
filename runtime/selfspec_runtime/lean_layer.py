"""Decoder layers of the Llama kind with fused projections and few operations.

Stock layers run some forty small operations each, which on a CPU cost a small model as much as its
multiplications. These run four of the own kernels, or sixteen of torch's where those cannot be had or a block is
long; they compute the same function, and answer to the same names, so that skip sets, exits and quantised copies
work on them as on the originals. Only models that selfspec loaded itself get them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn import functional

from selfspec_runtime.attention import grouped_attention
from selfspec_runtime.cache import KVCache
from selfspec_runtime.errors import UsageError
from selfspec_runtime.fast_linear import can_be_fused, fused
from selfspec_runtime.native.layer import LayerWeights, NativeLayer
from selfspec_runtime.native.linear import KernelLinear
from selfspec_runtime.native.operations import LANES, HeadShape, NormWeight, fits, gated_mlp, project

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec_runtime.weight_arena import WeightArena

#: Layers of exactly this computation: pre-norm RMSNorm attention with rotary positions, then a gated SiLU MLP.
LEAN_FAMILIES = ("LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer")


class LeanLayer(nn.Module):
    """One decoder layer.

    Args:
        layer: The original, of a family in :data:`LEAN_FAMILIES`; its norms are shared, its projections copied.
        arena: Where the copies go.
    """

    def __init__(self, layer: Any, arena: WeightArena) -> None:
        super().__init__()
        self.input_layernorm = LeanNorm(layer.input_layernorm)
        self.self_attn = LeanAttention(layer.self_attn, arena)
        self.post_attention_layernorm = LeanNorm(layer.post_attention_layernorm)
        self.mlp = LeanMLP(layer.mlp, arena)
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
        cache = past_key_values if cache is None else cache
        if self._is_one_operation(hidden_states, cache, attention_mask, position_embeddings):
            attention = self.self_attn
            slots = cache.slots(
                attention.layer_idx, kv_heads=attention.num_kv_heads, dim=attention.head_dim, like=hidden_states
            )
            return self._native()(hidden_states, slots, attention_mask, position_embeddings)
        attended = self.self_attn(
            hidden_states,
            norm=self.input_layernorm,
            attention_mask=attention_mask,
            cache=cache,
            position_embeddings=position_embeddings,
        )
        hidden_states = hidden_states + attended
        out: Tensor = hidden_states + self.mlp(hidden_states, norm=self.post_attention_layernorm)
        return out

    def _is_one_operation(
        self, hidden_states: Tensor, cache: Any, mask: Tensor | None, rotary: tuple[Tensor, Tensor]
    ) -> bool:
        """Whether nothing is left out of the layer, and the pass is a plain one over the shared cache."""
        whole = type(self.self_attn) is LeanAttention and type(self.mlp) is LeanMLP and type(cache) is KVCache
        plain = all(tensor.is_contiguous() for tensor in (hidden_states, *rotary))
        return whole and plain and self.self_attn.can_be_native(hidden_states, rotary[0]) and is_simple(mask)

    def _native(self) -> NativeLayer:
        """The layer as one operation; described anew where its weights have moved."""
        held: NativeLayer | None = self.__dict__.get("_described")
        linears = (self.self_attn.qkv_proj, self.self_attn.o_proj, self.mlp.gate_up_proj, self.mlp.down_proj)
        qkv, o, gate_up, down = (cast("KernelLinear", linear).matrix for linear in linears)
        if held is None or (held.weights.qkv, held.weights.down) != (qkv, down):
            norms = self.input_layernorm.described, self.post_attention_layernorm.described
            weights = LayerWeights(norms[0], qkv, o, norms[1], gate_up, down, self.self_attn.head_norms)
            held = NativeLayer(weights, self.self_attn.shape, self.self_attn.scaling)
            self.__dict__["_described"] = held
        return held

    def __getstate__(self) -> dict[str, Any]:
        """Addresses are nothing to copy."""
        return {name: value for name, value in self.__dict__.items() if name != "_described"}

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Refuses: no other program could read fused projections."""
        del destination, keep_vars
        message = (
            f"{prefix[:-1]} was rebuilt for this CPU and cannot be saved. Load the model with pack=False to save it."
        )
        raise UsageError(message)


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
        is_native = self.can_be_native(hidden_states, position_embeddings[0])
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

    def can_be_native(self, hidden_states: Tensor, cosine: Tensor) -> bool:
        """Whether the kernels take this block."""
        batch, rows, _ = hidden_states.shape
        whole = (
            cosine.shape[-1] == self.head_dim
            and self.head_dim % LANES == 0
            and cosine.dtype == hidden_states.dtype
            and batch == 1
        )
        return whole and is_on_kernels(self.qkv_proj) and fits(rows, hidden_states.dtype, hidden_states.device)

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


class LeanMLP(nn.Module):
    """A gated SiLU MLP with one projection for gate and up.

    Args:
        mlp: The original MLP.
        arena: Where its projections are copied to.
    """

    def __init__(self, mlp: Any, arena: WeightArena) -> None:
        super().__init__()
        self.gate_up_proj = fused([mlp.gate_proj, mlp.up_proj], arena)
        self.down_proj = fused([mlp.down_proj], arena)

    def forward(self, hidden_states: Tensor, *, norm: LeanNorm) -> Tensor:
        """Maps the normed ``[1, n, hidden]`` to the same shape."""
        rows = hidden_states.shape[0] * hidden_states.shape[1]
        if is_on_kernels(self.gate_up_proj) and fits(rows, hidden_states.dtype, hidden_states.device):
            gate_up, down = (cast("KernelLinear", linear).matrix for linear in (self.gate_up_proj, self.down_proj))
            return gated_mlp(hidden_states, norm.described, gate_up=gate_up, down=down)
        gate, up = self.gate_up_proj(norm(hidden_states)).chunk(2, dim=-1)
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

    @property
    def described(self) -> NormWeight:
        """The norm as the kernels take it."""
        return NormWeight(self.weight, self.eps)


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


def is_simple(mask: Tensor | None) -> bool:
    """Whether a mask is one that the kernels read."""
    return mask is None or (mask.dtype == torch.bool and mask.shape[:2] == (1, 1) and mask.is_contiguous())


def is_on_kernels(linear: nn.Module) -> bool:
    """Whether a layer's weight is described to the own kernels."""
    return isinstance(linear, KernelLinear)


def can_be_lean(layer: nn.Module) -> bool:
    """Whether a layer's family and all its projections allow it."""
    if type(layer).__name__ not in LEAN_FAMILIES:
        return False
    mlp: Any = layer.mlp
    linears = [module for module in layer.modules() if "Linear" in type(module).__name__]
    gated = type(mlp.act_fn).__name__ in ("SiLU", "SiLUActivation")
    return gated and len(linears) == 7 and can_be_fused(linears)
