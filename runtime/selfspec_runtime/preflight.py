"""Everything about a model that can be known without reading its weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from selfspec_runtime.adapter import Adapter, find_adapter
from selfspec_runtime.checkpoint_config import generation_config_notice, load_config
from selfspec_runtime.checkpoint_tokenizer import load_tokenizer
from selfspec_runtime.errors import ModelError
from selfspec_runtime.families import check_family, text_config
from selfspec_runtime.generation_defaults import context_tokens
from selfspec_runtime.model_place import ModelPlace, find_model
from selfspec_runtime.precision import choose_device, choose_dtype, has_fast_bfloat16
from selfspec_runtime.quantized_loading import check_quantization, stored_quantization
from selfspec_runtime.weight_files import WeightFiles, estimate_memory_bytes, read_weight_files

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from selfspec_runtime.model_spec import ModelSpec

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class Preflight:
    """A model, found and understood, with its weights still on disk.

    Attributes:
        spec: What was asked for, with model, dtype, device and quantisation resolved.
        place: Where its files are.
        config: Its configuration.
        tokenizer: Its tokenizer.
        model_class: Its class, or None where that comes with the checkpoint as code.
        device: Where it is to run.
        dtype: Dtype of its unquantised weights.
        adapter: The adapter to apply, or None.
        architecture: Name of its class.
        num_hidden_layers: Number of decoder layers.
        hidden_size: Width of a hidden state.
        vocab_size: Rows of its output head.
        context_tokens: Longest text it is made for, or None where it does not say.
        has_chat_template: Whether its tokenizer can render a conversation.
        weight_file_bytes: Size of the weights on disk, or None for a model that is not on this machine yet.
        weight_bytes: Estimated memory of the loaded weights, or None likewise.
        notices: What differs from what the checkpoint or the user would suggest, one sentence each.
    """

    spec: ModelSpec
    place: ModelPlace
    config: Any
    tokenizer: PreTrainedTokenizerBase
    model_class: type[PreTrainedModel] | None
    device: torch.device
    dtype: torch.dtype
    adapter: Adapter | None
    architecture: str
    num_hidden_layers: int
    hidden_size: int
    vocab_size: int
    context_tokens: int | None
    has_chat_template: bool
    weight_file_bytes: int | None
    weight_bytes: int | None
    notices: tuple[str, ...]


def preflight(spec: ModelSpec) -> Preflight:
    """Finds a model, reads its configuration, tokenizer and weight headers, and refuses what cannot work.

    Raises:
        ModelError: There is no such model, or its files are incomplete.
        UnsupportedModelError: Its family cannot be decoded losslessly.
        UsageError: The device or quantisation asked for cannot be had.
    """
    place = find_model(spec)
    adapter = find_adapter(spec.adapter_path) if spec.adapter_path is not None else None
    device = choose_device(spec.device)
    config = load_config(spec, place)
    check_family(config)
    stored = stored_quantization(config)
    check_quantization(spec, device, stored=stored, from_gguf=place.gguf_file is not None)
    files = _weight_files(spec, place)
    dtype, notices = _dtype(spec, config, files, device)
    tokenizer, more = load_tokenizer(spec, place, adapter, config)
    text = text_config(config)
    four_bit = spec.quantization == "bnb-4bit" and stored is None
    return Preflight(
        spec=_resolved(spec, place, device=device, dtype=dtype, stored=stored),
        place=place,
        config=config,
        tokenizer=tokenizer,
        model_class=model_class_of(config),
        device=device,
        dtype=dtype,
        adapter=adapter,
        architecture=_architecture(config),
        num_hidden_layers=int(text.num_hidden_layers),
        hidden_size=int(text.hidden_size),
        vocab_size=int(text.vocab_size),
        context_tokens=context_tokens(config),
        has_chat_template=bool(tokenizer.chat_template),
        weight_file_bytes=None if files is None else files.file_bytes,
        weight_bytes=None if files is None else estimate_memory_bytes(files, dtype.itemsize, four_bit=four_bit),
        notices=(*_gguf_notice(place, dtype), *notices, *more, *generation_config_notice(place)),
    )


def _gguf_notice(place: ModelPlace, dtype: torch.dtype) -> tuple[str, ...]:
    name = str(dtype).removeprefix("torch.")
    return () if place.gguf_file is None else (f"The GGUF file's blocks are unpacked to {name} while loading",)


def _weight_files(spec: ModelSpec, place: ModelPlace) -> WeightFiles | None:
    if place.folder is not None:
        return read_weight_files(place.folder, place.gguf_file)
    from transformers.utils import cached_file

    config_file = cached_file(place.name, place.gguf_file or "config.json", revision=spec.revision)
    try:
        return read_weight_files(Path(config_file).parent, place.gguf_file)
    except ModelError:
        return None


def _dtype(
    spec: ModelSpec, config: Any, files: WeightFiles | None, device: torch.device
) -> tuple[torch.dtype, tuple[str, ...]]:
    fast = has_fast_bfloat16(device)
    stored = _stored_dtype(config, files)
    if spec.dtype == "auto" and "bnb-4bit" in (spec.quantization, stored_quantization(config)):
        return _four_bit_dtype(stored, device.type, fast_bfloat16=fast), ()
    dtype, notice = choose_dtype(spec.dtype, stored, device.type, fast_bfloat16=fast)
    return dtype, () if notice is None else (notice,)


def _four_bit_dtype(stored: torch.dtype | None, device_type: str, *, fast_bfloat16: bool) -> torch.dtype:
    """NF4 products need a 16-bit dtype to be fast, and on a CPU it must be bfloat16."""
    if device_type == "cpu":
        return torch.bfloat16 if fast_bfloat16 else torch.float32
    return torch.bfloat16 if fast_bfloat16 and stored != torch.float16 else torch.float16


def _stored_dtype(config: Any, files: WeightFiles | None) -> torch.dtype | None:
    declared = getattr(text_config(config), "dtype", None) or getattr(config, "dtype", None)
    if isinstance(declared, str):
        declared = getattr(torch, declared, None)
    if isinstance(declared, torch.dtype):
        return declared
    return _DTYPES.get(files.float_dtype or "") if files is not None else None


def model_class_of(config: Any) -> type[PreTrainedModel] | None:
    """The class of a configuration's causal model, or None where it comes with the checkpoint as code."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return None
    found = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    model_class: type[PreTrainedModel] = found[0] if isinstance(found, tuple) else found
    return model_class


def _architecture(config: Any) -> str:
    model_class = model_class_of(config)
    if model_class is not None:
        return model_class.__name__
    return str((config.architectures or [config.model_type])[0])


def _resolved(
    spec: ModelSpec, place: ModelPlace, *, device: torch.device, dtype: torch.dtype, stored: str | None
) -> ModelSpec:
    changes: dict[str, Any] = {
        "model": place.name,
        "gguf_file": place.gguf_file,
        "device": str(device),
        "dtype": str(dtype).removeprefix("torch."),
    }
    if stored in ("bnb-4bit", "bnb-8bit"):
        changes["quantization"] = stored
    return spec.model_copy(update=changes)
