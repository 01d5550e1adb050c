"""Finds the decoder's parts inside an unmodified Hugging Face causal language model.

This is the only module that knows how model families are laid out. Everything else speaks of layers,
sub-layers and a head.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from selfspec_runtime.errors import UnsupportedModelError
from selfspec_runtime.families import text_config
from selfspec_runtime.generation_defaults import context_tokens
from selfspec_runtime.layer_stack import lock_of
from selfspec_runtime.layer_windows import layer_windows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor
    from transformers import PreTrainedModel

ATTENTION_NAMES = ("self_attn", "self_attention", "attention", "attn")
MLP_NAMES = ("mlp", "feed_forward", "block_sparse_moe", "ffn", "moe")
CACHE_NAMES = ("cache", "past_key_values")
#: Kinds of layers that can be rolled back by length.
KNOWN_KINDS = ("full_attention", "sliding_attention")
#: Attention implementations that take an explicit four-dimensional mask.
MASKED_ATTENTIONS = ("selfspec", "sdpa", "eager")


@dataclass(frozen=True, kw_only=True)
class DecoderParts:
    """Where things are in one model.

    Attributes:
        model: The causal language model, head included.
        base: The module that embeds tokens, runs the layers and the final norm.
        layers: The decoder layers' list, which a pass fills with those of its program.
        own_layers: The model's own decoder layers, in order.
        head: The module that turns final hidden states into logits, or None if it is not a module.
        head_path: Dotted name of the head inside ``model``, or None.
        attention_name: Name of the attention sub-module in a layer, or None where there is none.
        mlp_name: Name of the MLP (or mixture-of-experts) sub-module in a layer, or None.
        windows: For each layer the number of positions it sees, itself included; None for all.
        layer_kinds: For each layer its name in a mask dictionary ("full_attention", ...), or None where the
            family takes one mask for all layers.
        cache_argument: Name of forward's argument for the key/value cache; it changed within transformers 5.
        takes_positions: Whether forward accepts ``position_ids``.
        counts_slots: Whether an attention has a window in a mask of its own, which counts slots of the cache.
        takes_logits_to_keep: Whether forward accepts ``logits_to_keep``.
    """

    model: PreTrainedModel
    base: nn.Module
    layers: nn.ModuleList
    own_layers: tuple[nn.Module, ...]
    head: nn.Module | None
    head_path: str | None
    attention_name: str | None
    mlp_name: str | None
    windows: tuple[int | None, ...]
    layer_kinds: tuple[str, ...] | None
    cache_argument: str
    takes_positions: bool
    counts_slots: bool
    takes_logits_to_keep: bool

    @property
    def num_layers(self) -> int:
        """How many decoder layers there are."""
        return len(self.own_layers)

    @property
    def tied_to_slots(self) -> str | None:
        """Why no token may stand in another slot of the cache than its position, or None if one may."""
        if not self.takes_positions:
            return "it does not take a position for each token"
        return "its attention has a window of its own that counts slots of the cache" if self.counts_slots else None

    @property
    def attention_implementation(self) -> str:
        """Name of the attention function the model was loaded with."""
        return str(text_config(self.model.config)._attn_implementation)

    @property
    def takes_boolean_masks(self) -> bool:
        """Whether the attention reads a boolean mask, where others add the mask to the scores.

        A family that does not go through transformers' attention interface runs its own, adding code under
        whatever name it was loaded with: a boolean mask would then hide nothing, without an error.
        """
        if self.attention_implementation == "sdpa":
            return True
        return self.attention_implementation == "selfspec" and type(self.model).is_backend_compatible()


def find_parts(model: PreTrainedModel) -> DecoderParts:
    """Locates layers, sub-layers and head structurally.

    Raises:
        UnsupportedModelError: The model has no recognisable stack of decoder layers, or an attention that cannot
            compute a block of tokens under an explicit mask as it computes single steps.
    """
    config = text_config(model.config)
    _require_masked_attention(model, str(config._attn_implementation))
    base, layers = _find_layers(model, int(config.num_hidden_layers))
    with lock_of(layers):
        own = tuple(layers)
    _require_causal_blocks(model, base, own[0])
    _require_known_kinds(config)
    parameters = inspect.signature(model.forward).parameters
    base_parameters = inspect.signature(base.forward).parameters
    head = model.get_output_embeddings()
    parts = DecoderParts(
        model=model,
        base=base,
        layers=layers,
        own_layers=own,
        head=head,
        head_path=_path_of(model, head),
        attention_name=_child_name(own[0], ATTENTION_NAMES),
        mlp_name=_child_name(own[0], MLP_NAMES),
        windows=(None,) * len(own),
        layer_kinds=None,
        cache_argument=next((n for n in CACHE_NAMES if n in parameters), CACHE_NAMES[-1]),
        takes_positions="position_ids" in parameters or "position_ids" in base_parameters,
        counts_slots=any(_hides_slots(buffer) for layer in own for buffer in layer.buffers()),
        takes_logits_to_keep="logits_to_keep" in parameters,
    )
    return _with_windows(parts, config)


def _require_masked_attention(model: PreTrainedModel, implementation: str) -> None:
    if implementation not in MASKED_ATTENTIONS:
        message = (
            f"This {type(model).__name__} was loaded with attn_implementation={implementation!r}, which takes no "
            "explicit mask, and a block of draft tokens needs one. Load it with one of: "
            f"{', '.join(MASKED_ATTENTIONS)}."
        )
        raise UnsupportedModelError(message)


def _require_causal_blocks(model: PreTrainedModel, base: nn.Module, layer: nn.Module) -> None:
    reason = None
    if hasattr(base, "build_alibi_tensor") or getattr(text_config(model.config), "alibi", False):
        reason = (
            "makes its position biases (ALiBi) from a two-dimensional mask, and a block needs a four-dimensional one"
        )
    elif any(hasattr(module, "keep_window_size") for module in layer.children()):
        reason = (
            "chooses which keys to see among all tokens of a pass, so that drafted tokens would change earlier ones"
        )
    if reason is not None:
        message = f"{type(model).__name__} cannot be decoded in blocks: it {reason}. Use transformers' generate."
        raise UnsupportedModelError(message)


def _find_layers(model: PreTrainedModel, num_layers: int) -> tuple[nn.Module, nn.ModuleList]:
    for module in _inner_first(model):
        for child in module.children():
            if isinstance(child, nn.ModuleList) and len(child) == num_layers and _looks_decoding(child[0]):
                return module, child
    message = (
        f"{type(model).__name__} has no list of {num_layers} decoder layers that selfspec recognises. "
        "selfspec needs a decoder-only model whose layers are one torch ModuleList."
    )
    raise UnsupportedModelError(message)


def _inner_first(model: PreTrainedModel) -> Iterator[nn.Module]:
    base = getattr(model, "base_model", model)
    yield base
    yield from (module for module in model.modules() if module is not base)


def _looks_decoding(layer: nn.Module) -> bool:
    return _child_name(layer, ATTENTION_NAMES) is not None


def _child_name(layer: nn.Module, names: tuple[str, ...]) -> str | None:
    children = dict(layer.named_children())
    return next((name for name in names if name in children), None)


def _hides_slots(buffer: Tensor) -> bool:
    """Whether a buffer is a mask over slots ``[1, 1, n, n]`` whose last row does not see all before it."""
    is_mask = (
        not buffer.is_meta
        and buffer.dtype in (torch.bool, torch.uint8)
        and buffer.ndim == 4
        and buffer.shape[2] == buffer.shape[3]
    )
    return is_mask and not bool(buffer[0, 0, -1].all())


def _path_of(model: nn.Module, wanted: nn.Module | None) -> str | None:
    return next((name for name, module in model.named_modules() if module is wanted), None)


def _require_known_kinds(config: Any) -> None:
    unknown = set(getattr(config, "layer_types", None) or ()) - set(KNOWN_KINDS)
    if unknown:
        message = (
            f"The layer kinds {sorted(unknown)} of {config.model_type} are not supported: selfspec knows full and "
            "sliding attention, since only these can be rolled back by length."
        )
        raise UnsupportedModelError(message)


def _with_windows(parts: DecoderParts, config: Any) -> DecoderParts:
    """Adds the windows that the model's forward applies, whatever its configuration says.

    Families whose layers differ in this take a dictionary of masks, keyed by kind.
    """
    window, context = getattr(config, "sliding_window", None), context_tokens(config)
    if window is None or (context is not None and window >= context):
        return parts
    windows = layer_windows(parts, window=window)
    if len(set(windows)) == 1:
        return replace(parts, windows=windows)
    kinds = tuple(getattr(config, "layer_types", None) or ())[: len(windows)]
    if len(kinds) < len(windows) or len(set(zip(kinds, windows, strict=True))) != len(set(kinds)):
        message = (
            f"The layers of {type(parts.model).__name__} see differently far, and its layer_types do not say which."
        )
        raise UnsupportedModelError(message)
    return replace(parts, windows=windows, layer_kinds=kinds)
