"""Decoder layers of the Llama kind with fused projections and few operations.

Stock layers run some forty small operations each, which on a CPU cost a small model as much as its
multiplications. These are one call of the own kernels, or sixteen of torch's operators where those cannot be had or a
block is long; they compute the same function, and answer to the same names, so that skip sets, exits and quantised
copies work on them as on the originals. Only models that selfspec loaded itself get them.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from selfspec_runtime.cache import KVCache
from selfspec_runtime.errors import UsageError
from selfspec_runtime.fast_linear import can_be_fused
from selfspec_runtime.lean_attention import LeanAttention
from selfspec_runtime.lean_mlp import LeanMLP
from selfspec_runtime.lean_norm import LeanNorm
from selfspec_runtime.native.layer import LayerWeights, NativeLayer, fits_layers, run_layers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from selfspec_runtime.native.linear import KernelLinear
    from selfspec_runtime.weight_arena import WeightArena

NORMS = ("LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm")
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
        native = self.native()
        whole = [] if native is None else [native]
        passed = run_native(whole, hidden_states, cache, attention_mask, position_embeddings)
        if passed is not None:
            return passed
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

    def native(self, silenced: str | None = None) -> NativeLayer | None:
        """The layer as the kernels read it, or None where they cannot, or where a sub-layer is another one.

        Args:
            silenced: A sub-layer to leave out, ``attention`` or ``mlp``.
        """
        attention, mlp = self._modules["self_attn"], self._modules["mlp"]
        if type(attention) is not LeanAttention or type(mlp) is not LeanMLP:
            return None
        children = (*attention._modules.values(), *mlp._modules.values(), *self._norm_weights(attention))
        known: dict[str | None, _Described] = self.__dict__.setdefault("_described", {})
        held = known.get(silenced)
        if held is None or not _are(held.children, children) or held.native.has_moved():
            if not attention.is_on_kernels or not mlp.is_on_kernels:
                return None
            held = known[silenced] = _Described(children, self._describe(attention, mlp, silenced))
        return held.native

    def _norm_weights(self, attention: LeanAttention) -> list[Tensor]:
        norms = (self.input_layernorm, self.post_attention_layernorm, attention.q_norm, attention.k_norm)
        return [norm.weight for norm in norms if norm is not None]

    def _describe(self, attention: LeanAttention, mlp: LeanMLP, silenced: str | None) -> NativeLayer:
        linears = (attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj)
        qkv, o, gate_up, down = (cast("KernelLinear", linear).matrix for linear in linears)
        norms = self.input_layernorm.described, self.post_attention_layernorm.described
        weights = LayerWeights(norms[0], qkv, o, norms[1], gate_up, down, attention.head_norms)
        scale, index = attention.scaling, attention.layer_idx
        return NativeLayer(weights, attention.shape, scale=scale, index=index, silenced=silenced)

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


@dataclass(frozen=True)
class _Described:
    """A layer as the kernels read it, and what it was described from."""

    children: tuple[nn.Module | Tensor | None, ...]
    native: NativeLayer


def _are(known: Sequence[object], now: Sequence[object]) -> bool:
    return len(known) == len(now) and all(map(operator.is_, known, now))


def run_native(
    layers: Sequence[NativeLayer], hidden_states: Tensor, cache: Any, mask: Tensor | None, rotary: tuple[Tensor, Tensor]
) -> Tensor | None:
    """Runs layers as one call, ``[1, n, hidden]`` to the same shape.

    Returns:
        None where the kernels do not take this pass, or there are no layers; nothing was written then.
    """
    if not layers or type(cache) is not KVCache:
        return None
    shape = layers[0].shape
    slots = cache.slots(kv_heads=shape.keys, dim=shape.dim, like=hidden_states)
    if slots is None or not fits_layers(layers, hidden_states, slots, mask, rotary):
        return None
    return run_layers(layers, hidden_states, slots, mask, rotary)


def can_be_lean(layer: nn.Module) -> bool:
    """Whether a layer's family and all its projections allow it."""
    if not is_stock(layer, LEAN_FAMILIES):
        return False
    mlp: Any = layer.mlp
    linears = [module for module in layer.modules() if "Linear" in type(module).__name__]
    gated = type(mlp.act_fn).__name__ in ("SiLU", "SiLUActivation")
    norms = [module for name, module in layer.named_modules() if name.endswith("norm")]
    return gated and all(is_stock(norm, NORMS) for norm in norms) and len(linears) == 7 and can_be_fused(linears)


def is_stock(module: nn.Module, names: tuple[str, ...]) -> bool:
    """Whether a module is of one of these classes of transformers; a checkpoint's own code may reuse their names."""
    kind = type(module)
    return kind.__name__ in names and kind.__module__.startswith("transformers.models.")
