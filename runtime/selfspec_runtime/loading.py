"""Loads a model so that it can be decoded: found, understood, refused or ready."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from selfspec_runtime.adapter import apply_adapter
from selfspec_runtime.attention_choice import attention_candidates, is_about_attention
from selfspec_runtime.errors import ModelError, UsageError
from selfspec_runtime.fingerprint import ModelFingerprint, fingerprint
from selfspec_runtime.native.library import native_status
from selfspec_runtime.packing import pack_model
from selfspec_runtime.preflight import Preflight, preflight
from selfspec_runtime.quantized_loading import QuantizedLoading, quantized_loading
from selfspec_runtime.weight_fit import load_fault, require_fitting, unused_notice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from selfspec_runtime.model_spec import ModelSpec

__all__ = ["LoadedModel", "Preflight", "load_model", "preflight"]

_LOAD_ERRORS = (
    OSError,
    ValueError,
    RuntimeError,
    ImportError,
    KeyError,
    TypeError,
    AttributeError,
    SafetensorError,
    pickle.UnpicklingError,
)


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to decode.

    Attributes:
        model: In evaluation mode, on its device, without gradients.
        tokenizer: Its tokenizer.
        spec: What was asked for, with every ``auto`` replaced by what was chosen.
        notices: What differs from what the checkpoint or the user would suggest, one sentence each.
        identity: Fingerprint taken before the weights were packed, or None where they were not.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    spec: ModelSpec
    notices: tuple[str, ...] = ()
    identity: ModelFingerprint | None = None


def load_model(spec: ModelSpec) -> LoadedModel:
    """Loads a causal language model and its tokenizer.

    Args:
        spec: What to load; ``auto`` values are resolved for this machine.

    Raises:
        ModelError: There is no such model, or its files are broken or incomplete.
        UnsupportedModelError: Its family cannot be decoded losslessly; raised before weights are read.
        UsageError: The device, quantisation or attention asked for cannot be had.
    """
    ready = preflight(spec)
    how = quantized_loading(ready.spec, ready.config, ready.model_class, device=ready.device, dtype=ready.dtype)
    model, attention, unused = _load_weights(ready, how)
    notices = (*ready.notices, *how.notices, *unused)
    if ready.adapter is not None:
        merge = how.name == "none"
        model = apply_adapter(model, ready.adapter, merge=merge)
        notices += ("The adapter is merged into the weights" if merge else _UNMERGED,)
    model.eval()
    model.requires_grad_(False)
    resolved = ready.spec.model_copy(update={"attn_implementation": attention})
    return _packed(LoadedModel(model, ready.tokenizer, resolved, notices))


def _packed(loaded: LoadedModel) -> LoadedModel:
    """Repacks plain weights where that helps; what the model is was written down before."""
    quantized = not all(weight.is_floating_point() for weight in loaded.model.parameters())
    helps = not quantized or native_status().kernels is not None  # only the own kernels take four-bit codes over
    if not loaded.spec.pack or loaded.model.device.type != "cpu" or not helps:
        return loaded
    identity = fingerprint(loaded)
    pack_model(loaded.model)
    return replace(loaded, identity=identity)


_UNMERGED = "The adapter runs beside the quantised weights, which cannot take it in: each pass costs a little more"


def _load_weights(ready: Preflight, how: QuantizedLoading) -> tuple[PreTrainedModel, str, tuple[str, ...]]:
    candidates = attention_candidates(ready.model_class, ready.spec.attn_implementation)
    try:
        model, info = _first_that_loads(ready, how, candidates)
    except _LOAD_ERRORS as error:
        raise _load_error(ready, error) from error
    require_fitting(ready, info)
    attention = str(model.config.get_text_config(decoder=True)._attn_implementation)
    return model, attention, unused_notice(ready, info)


def _first_that_loads(
    ready: Preflight, how: QuantizedLoading, candidates: Sequence[str]
) -> tuple[PreTrainedModel, dict[str, Any]]:
    attention, *others = candidates
    try:
        return _from_pretrained(ready, how, attention)
    except ValueError as error:
        if not others or not is_about_attention(error):
            raise
    return _first_that_loads(ready, how, others)


def _from_pretrained(ready: Preflight, how: QuantizedLoading, attention: str) -> tuple[PreTrainedModel, dict[str, Any]]:
    from transformers import AutoModelForCausalLM

    spec = ready.spec
    optional = {
        "quantization_config": how.quantization_config if ready.place.gguf_file is None else _dequantize(),
        "gguf_file": ready.place.gguf_file,
        "revision": spec.revision,
    }
    model, info = AutoModelForCausalLM.from_pretrained(
        ready.place.name,
        config=how.config,
        dtype=ready.dtype,
        device_map={"": ready.device},
        attn_implementation=attention,
        trust_remote_code=spec.trust_remote_code,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # they are refused afterwards, by name
        **{name: value for name, value in optional.items() if value is not None},
    )
    return model, info


def _dequantize() -> Any:
    """GGUF blocks become plain weights: asked for from transformers 5.24 on, always so before."""
    import transformers

    settings = getattr(transformers, "GgufConfig", None)
    return None if settings is None else settings(dequantize=True)


def _load_error(ready: Preflight, error: Exception) -> ModelError | UsageError:
    reason = load_fault(ready, error)
    requested = ready.spec.attn_implementation
    if isinstance(error, torch.OutOfMemoryError):
        size = f" (about {ready.weight_bytes / 1e9:.1f} GB)" if ready.weight_bytes else ""
        return ModelError(
            f"{ready.place.name}{size} does not fit into the memory of {ready.device}. "
            "Try --quantization bnb-4bit or --device cpu."
        )
    if requested is not None and is_about_attention(error):
        return UsageError(f"{ready.architecture} cannot run with --attn-implementation {requested}: {reason}")
    return ModelError(f"The weights of {ready.place.name} cannot be loaded: {reason}")
