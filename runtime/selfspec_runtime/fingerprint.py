"""Tells models apart, so that a calibration is used for the model that it was made for."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict

from selfspec_runtime.families import text_config
from selfspec_runtime.machine import device_name
from selfspec_runtime.weight_sample import sha256_of_weights

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from selfspec_runtime.loading import LoadedModel

PROBE_TEXTS = (
    "The quick brown fox, 3.14159 x 42!",
    "  def f(a):\n\treturn a[0] != None  # café\n\n",
    "Привет, 世界 🙂 naïve\u00a0ﬁ",
)
"""Texts whose ids tell apart tokenizers with one vocabulary and different merges or normalisation."""

_VOLATILE = frozenset(
    "_name_or_path _model_name_or_path _commit_hash transformers_version dtype torch_dtype architectures "
    "quantization_config auto_map use_cache output_attentions output_hidden_states return_dict "
    "_attn_implementation _attn_implementation_internal attn_implementation _experts_implementation "
    "experts_implementation id2label label2id problem_type is_decoder".split()
)


class ModelFingerprint(BaseModel):
    """What identifies a loaded model.

    Attributes:
        architecture: Name of the model's class.
        num_hidden_layers: Number of decoder layers.
        hidden_size: Width of a hidden state.
        vocab_size: Rows of the output head.
        config_sha256: Of the configuration, without what does not change the model.
        weights_sha256: Of names, shapes and sampled values of all weights; the same in float32 and bfloat16,
            from one file, from shards or from a converted copy.
        tokenizer_sha256: Of the vocabulary and the ids of probe texts.
        chat_template_sha256: Of the chat template, or None where there is none.
        dtype: Dtype of the unquantised weights.
        quantization: ``none``, ``bnb-4bit``, ``bnb-8bit``, or another method's name.
        adapter: Name of the adapter's folder, or None.
        attn_implementation: Name of the attention function.
        device: Name of the device.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    architecture: str
    num_hidden_layers: int
    hidden_size: int
    vocab_size: int
    config_sha256: str
    weights_sha256: str
    tokenizer_sha256: str
    chat_template_sha256: str | None = None
    dtype: str
    quantization: str = "none"
    adapter: str | None = None
    attn_implementation: str | None = None
    device: str | None = None


@dataclass(frozen=True)
class Mismatch:
    """One difference between a recorded model and the one at hand.

    Attributes:
        field: Name of the field of `ModelFingerprint`.
        severity: ``refuse``: the plan must not be used; ``warn``: it holds, but its speed was not measured so.
        message: What differs and what to do, as a sentence.
        forceable: Whether a refusal may be overridden: the plan fits, though not what was measured.
    """

    field: str
    severity: Literal["refuse", "warn"]
    message: str
    forceable: bool = True


def fingerprint(loaded: LoadedModel) -> ModelFingerprint:
    """Fingerprints a loaded model; one whose weights were packed remembers what it was before.

    Reads 64 values per weight tensor: under a second for 8 billion parameters.
    """
    if loaded.identity is not None:
        return loaded.identity
    model, spec = loaded.model, loaded.spec
    text = text_config(model.config)
    template = loaded.tokenizer.chat_template
    return ModelFingerprint(
        architecture=type(model).__name__,
        num_hidden_layers=int(text.num_hidden_layers),
        hidden_size=int(text.hidden_size),
        vocab_size=int(text.vocab_size),
        config_sha256=sha256_of_config(model.config),
        weights_sha256=sha256_of_weights(model),
        tokenizer_sha256=sha256_of_tokenizer(loaded.tokenizer),
        chat_template_sha256=_sha256(template) if template else None,
        dtype=str(model.dtype).removeprefix("torch."),
        quantization=_quantization(model.config, spec.quantization),
        adapter=_last_part(spec.adapter_path),
        attn_implementation=getattr(text, "_attn_implementation", None),
        device=device_name(torch.device(model.device)),
    )


def sha256_of_config(config: Any) -> str:
    """Hash of a configuration's canonical JSON, without names, versions and number formats."""
    return _sha256(_without_volatile(config.to_dict()))


def _without_volatile(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {str(key): _without_volatile(item) for key, item in value.items() if key not in _VOLATILE}
        return {key: item for key, item in kept.items() if item is not None}
    return [_without_volatile(item) for item in value] if isinstance(value, list | tuple) else value


def sha256_of_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash of what a tokenizer does: its vocabulary, its special tokens, and the ids of probe texts."""
    probes = [tokenizer(text)["input_ids"] for text in PROBE_TEXTS]
    specials = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    return _sha256([sorted(tokenizer.get_vocab().items()), specials, probes])


def _sha256(value: Any) -> str:
    canonical = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _quantization(config: Any, requested: str) -> str:
    settings = getattr(config, "quantization_config", None)
    if requested != "none" or settings is None:
        return requested
    method = settings.get("quant_method") if isinstance(settings, dict) else settings.quant_method
    return str(getattr(method, "value", method))


def _last_part(path: str | None) -> str | None:
    return None if path is None else path.rstrip("/\\").replace("\\", "/").rsplit("/", 1)[-1]


def compare(recorded: ModelFingerprint, actual: ModelFingerprint) -> list[Mismatch]:
    """Differences that matter between the model of a calibration and the one at hand, the gravest first.

    Another structure or tokenizer is refused always, other weights of the same structure unless forced; another
    number format, quantisation, attention or device only means that the speed was not measured.
    """
    refused = [_refusal(name, recorded, actual) for name in _STRUCTURE if _differ(name, recorded, actual)]
    weights = [_weights(recorded, actual)] if _differ("weights_sha256", recorded, actual) and not refused else []
    warned = [_warning(name, recorded, actual) for name in _CIRCUMSTANCES if _differ(name, recorded, actual)]
    return sorted([*refused, *weights, *warned], key=lambda mismatch: mismatch.severity)


_STRUCTURE = {
    "architecture": "another architecture",
    "num_hidden_layers": "another number of layers",
    "hidden_size": "another hidden size",
    "vocab_size": "another vocabulary size",
    "tokenizer_sha256": "another tokenizer",
}
_CIRCUMSTANCES = {
    "config_sha256": "other settings in its config.json",
    "chat_template_sha256": "another chat template",
    "dtype": "another dtype",
    "quantization": "another quantisation",
    "adapter": "another adapter",
    "attn_implementation": "another attention function",
    "device": "another device",
}


def _differ(name: str, recorded: ModelFingerprint, actual: ModelFingerprint) -> bool:
    return bool(getattr(recorded, name) != getattr(actual, name))


def _refusal(name: str, recorded: ModelFingerprint, actual: ModelFingerprint) -> Mismatch:
    message = f"The calibration is for {_STRUCTURE[name]}{_values(name, recorded, actual)}: calibrate this model."
    return Mismatch(name, "refuse", message, forceable=False)


def _warning(name: str, recorded: ModelFingerprint, actual: ModelFingerprint) -> Mismatch:
    told = f"The calibration was made with {_CIRCUMSTANCES[name]}{_values(name, recorded, actual)}"
    return Mismatch(name, "warn", f"{told}: its speed was not measured here, see selfspec bench.")


def _weights(recorded: ModelFingerprint, actual: ModelFingerprint) -> Mismatch:
    """Sampled values are comparable between float32 and bfloat16, not across quantisations or with float16."""
    rounded = recorded.dtype != actual.dtype and "float16" in (recorded.dtype, actual.dtype)
    if rounded or recorded.quantization != actual.quantization:
        message = "Whether the weights are those of the calibration cannot be told across number formats."
        return Mismatch("weights_sha256", "warn", message)
    message = (
        "The calibration is for other weights of the same architecture. Calibrate this model, or pass --force to "
        "use the plan: the text stays right, the speed was not measured."
    )
    return Mismatch("weights_sha256", "refuse", message)


def _values(name: str, recorded: ModelFingerprint, actual: ModelFingerprint) -> str:
    if name.endswith("_sha256"):
        return ""
    return f" ({getattr(recorded, name)}, here {getattr(actual, name)})"
