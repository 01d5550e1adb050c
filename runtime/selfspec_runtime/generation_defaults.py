"""What a model's own generation config asks for, read as ``generate`` of transformers reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from selfspec_runtime.families import text_config
from selfspec_runtime.sampling import SamplingSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

GENERATE_TOP_K = 50
"""``generate`` samples from the 50 likeliest tokens where the config is silent."""

_CONTEXT_NAMES = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_sequence_length",
    "max_seq_len",
    "max_seq_length",
)


@dataclass(frozen=True)
class GenerationDefaults:
    """How a model is to be decoded if the user says nothing else.

    Attributes:
        eos_token_ids: Every id that ends the text, in the config's order; empty if there is none.
        pad_token_id: Id for padding, or None.
        context_tokens: Longest text, prompt included, or None where the model does not say.
        max_new_tokens: How many tokens the config allows, or None where it is silent.
        stop_strings: Strings that end the text.
        sampling: Greedy unless the config samples.
        notices: What in the config is overridden, one sentence each.
    """

    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None
    context_tokens: int | None
    max_new_tokens: int | None
    stop_strings: tuple[str, ...]
    sampling: SamplingSettings
    notices: tuple[str, ...]


def resolve_generation_defaults(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None
) -> GenerationDefaults:
    """Reads a model's generation config; nothing is changed in it.

    Args:
        model: The model, with the generation config that it was loaded with.
        tokenizer: Asked for its end token where the model names none.
    """
    settings = model.generation_config
    eos, eos_notices = _eos(model, tokenizer)
    sampling, sampling_notices = _sampling(settings)
    context = context_tokens(model.config)
    return GenerationDefaults(
        eos_token_ids=eos,
        pad_token_id=_first(_ids(settings, "pad_token_id") or eos),
        context_tokens=context,
        max_new_tokens=getattr(settings, "max_new_tokens", None),
        stop_strings=_strings(getattr(settings, "stop_strings", None)),
        sampling=sampling,
        notices=(*eos_notices, *sampling_notices, *_overridden(settings, model.config), *_context_notices(model)),
    )


def context_tokens(config: Any) -> int | None:
    """Longest text that a model is made for, in tokens, or None where its positions are not bounded.

    A rotary table that changes within the limit (longrope, at the original length) makes the keys already stored
    wrong when it changes, so such a model is held to its original length. Dynamic NTK changes beyond the limit only.
    """
    text = text_config(config)
    if getattr(text, "alibi", False) or text.model_type == "bloom":
        return None
    lengths = [length for name in _CONTEXT_NAMES if isinstance(length := getattr(text, name, None), int)]
    limit = next((length for length in lengths if length > 0), None)
    original = _original_length(text)
    return limit if original is None else min(original, limit or original)


def _original_length(text: Any) -> int | None:
    """The shortest length at which the rotary table of any layer changes."""
    rotary = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    nested = [each for each in rotary.values() if isinstance(each, dict)]  # one per kind of layer
    changing = [each for each in nested or [rotary] if each.get("rope_type", each.get("type")) == "longrope"]
    own = getattr(text, "original_max_position_embeddings", None)
    lengths = [each.get("original_max_position_embeddings") or own for each in changing]
    return min((int(length) for length in lengths if length), default=None)


def _context_notices(model: PreTrainedModel) -> tuple[str, ...]:
    original = _original_length(text_config(model.config))
    limit = getattr(text_config(model.config), "max_position_embeddings", None)
    if original is None or limit is None or original >= limit:
        return ()
    reason = "its rotary table changes beyond, and stored keys would be wrong"
    return (f"The context is held to {original:,} of {limit:,} tokens: {reason}",)


def _eos(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The generation config's alone: where a checkpoint has none, transformers has made it of the model's config."""
    own = getattr(tokenizer, "eos_token_id", None)
    eos, unread = _ids(model.generation_config, "eos_token_id"), _ids(text_config(model.config), "eos_token_id")
    if not eos and unread:
        named = f"The model's config names an end token ({_listed(unread)}), but its generation config names none"
        return (), (f"{named}: no token ends the text, as in generate",)
    if not eos and own is None:
        return (), ("The model names no end token: text ends at the length limit or a stop string only",)
    if not eos and own is not None:
        return (int(own),), (f"The model names no end token; the tokenizer's is used (id {own})",)
    if own is not None and own not in eos:
        named = f"The tokenizer's end token (id {own}) is not among the model's ({_listed(eos)})"
        return eos, (f"{named}: it does not end the text, as in generate",)
    return eos, ()


def _listed(token_ids: tuple[int, ...]) -> str:
    return ", ".join(map(str, token_ids))


def _ids(holder: Any, name: str) -> tuple[int, ...]:
    value = getattr(holder, name, None)
    if value is None:
        return ()
    listed = value if isinstance(value, list | tuple) else [value]
    return tuple(dict.fromkeys(int(each) for each in listed if each is not None and int(each) >= 0))


def _first(values: tuple[int, ...]) -> int | None:
    return values[0] if values else None


def _strings(value: str | list[str] | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


def _sampling(settings: Any) -> tuple[SamplingSettings, tuple[str, ...]]:
    """The law of ``generate``: its warpers, and their defaults where the config is silent."""
    if not getattr(settings, "do_sample", None):
        return SamplingSettings(), ()
    temperature = _or(getattr(settings, "temperature", None), 1.0)
    if temperature <= 0:
        return SamplingSettings(), (f"The config samples at temperature {temperature}: taken as greedy",)
    top_k = _or(getattr(settings, "top_k", None), GENERATE_TOP_K)
    top_p = _or(getattr(settings, "top_p", None), 1.0)
    min_p = getattr(settings, "min_p", None)
    sampling = SamplingSettings(
        temperature=float(temperature),
        top_k=int(top_k) if top_k else None,
        top_p=float(top_p) if 0 < top_p < 1 else None,
        min_p=float(min_p) if min_p and 0 < min_p < 1 else None,
    )
    return sampling, ()


def _or(value: Any, default: float) -> Any:
    return default if value is None else value


def _overridden(settings: Any, config: Any) -> tuple[str, ...]:
    found = [(name, getattr(settings, name, None)) for name, _, _ in _OVERRIDES]
    notices = [
        f"The config's {name}={value} is overridden: {reason}"
        for (name, value), (_, is_set, reason) in zip(found, _OVERRIDES, strict=True)
        if value is not None and is_set(value)
    ]
    if getattr(text_config(config), "use_cache", None) is False and settings.use_cache is not False:
        notices.append("The config's use_cache=False is overridden: decoding needs the key/value cache")
    return tuple(notices)


def _more_than_one(value: Any) -> bool:
    return int(value) > 1


_OVERRIDES: tuple[tuple[str, Any, str], ...] = (
    ("num_beams", _more_than_one, "selfspec follows one text at a time, without beam search"),
    ("num_return_sequences", _more_than_one, "selfspec writes one text at a time"),
    ("use_cache", lambda value: value is False, "decoding needs the key/value cache"),
    (
        "cache_implementation",
        lambda value: value not in ("hybrid", "dynamic"),
        "selfspec brings its own key/value cache",
    ),
    ("penalty_alpha", lambda value: value > 0, "selfspec has no contrastive search"),
    ("dola_layers", bool, "selfspec has no contrast between layers"),
    ("prompt_lookup_num_tokens", bool, "selfspec drafts by its own plan"),
    ("assistant_early_exit", bool, "selfspec drafts by its own plan"),
    ("guidance_scale", lambda value: value != 1, "selfspec runs one pass per token, without guidance"),
)
