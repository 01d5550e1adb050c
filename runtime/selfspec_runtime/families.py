"""Refuses, from the configuration alone, the model families that cannot be decoded losslessly.

Speculation drops tokens that the target rejects, so whatever a layer remembers must be droppable by length:
keys and values are; a recurrent state, a convolution state or compressed keys are not. The checks read
attributes rather than names wherever they can, so that a family unknown today is refused too.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from selfspec_runtime.errors import UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DECODABLE_LAYER_KINDS = frozenset({"full_attention", "sliding_attention", "attention"})

RECURRENT_FAMILIES = frozenset(
    "bailing_hybrid bamba falcon_h1 falcon_mamba glm5_next granitemoehybrid jamba kimi_linear lara_mini "
    "lfm2 lfm2_moe lfm3 mamba mamba2 minimax nemotron_h olmo_hybrid qwen3_5 qwen3_5_moe qwen3_next "
    "qwen4_exp recurrent_gemma rwkv xlstm zamba zamba2 zaya".split()
)
CACHELESS_FAMILIES = frozenset("cpmant flaubert openai-gpt reformer transfo-xl xlm xlnet".split())
PREFIX_FAMILIES = frozenset("chatglm git prophetnet xlm-prophetnet".split())
ENCODER_FAMILIES = frozenset("bert-generation".split())
ALIBI_FAMILIES = frozenset("bloom".split())
SELECTING_FAMILIES = frozenset("doge".split())
UNKNOWN_LAYOUTS = frozenset("ctrl dbrx longcat_flash".split())
DECODER_HALVES = frozenset("trocr speech_to_text_2".split())

_LAYER_KIND_NAMES = ("layer_types", "layers_block_type", "block_types", "hybrid_override_pattern")
_RECURRENT_KIND = re.compile(r"mamba|ssm|linear|recurrent|rwkv|conv|lstm|delta|retention|hybrid|lightning")
_RECURRENT_SETTING = re.compile(
    r"^(n_|use_)?mamba_|^ssm_|^linear_(attn|conv|key|num|head)|^conv_?l_cache$|^conv_kernel|^short_conv|^time_step_"
    r"|^lru_width$|_conv_states?$|^state_size$|^rwkv|^attn_layer_(period|indices)$",
    re.IGNORECASE,
)
_LOOP_SETTING = re.compile(r"^[hl]_cycles$|recurrent_loops$|^loop_num|^num_loops$|^num_recurren", re.IGNORECASE)
_SHARED_KV_SETTING = re.compile(r"kv_shared|shared_kv|kv_sharing|kv_reuse|yoco|^cla_share|^use_cla$", re.IGNORECASE)
_OTHER_MEDIA = re.compile(r"vision|image|audio|video|speech|visual|patcher|(^|_)vq_", re.IGNORECASE)
_DIFFUSION = re.compile(r"diffusion|llada|(^|_)dream", re.IGNORECASE)
_OTHER_HEAD = re.compile(
    r"For(Sequence|Token|Image)Classification$|ForQuestionAnswering$|ForMaskedLM$|ForMultipleChoice$|RewardModel$"
)


def check_family(config: Any) -> None:
    """Raises if models with this configuration cannot be decoded losslessly.

    Args:
        config: A transformers configuration; nothing else of the model is looked at.

    Raises:
        UnsupportedModelError: Names the family and the reason.
    """
    reason = next(_reasons(config), None)
    if reason is None:
        return
    family = getattr(config, "model_type", None) or type(config).__name__
    message = f"selfspec cannot decode models of the family {family!r}: {reason}."
    raise UnsupportedModelError(message)


def _reasons(config: Any) -> Iterator[str]:
    text = text_config(config)
    for rule in _RULES:
        reason = rule(config, text)
        if reason is not None:
            yield reason


def text_config(config: Any) -> Any:
    """The configuration of the part that decodes text: the configuration itself unless it is composite."""
    getter = getattr(config, "get_text_config", None)
    return config if getter is None else getter(decoder=True)


def layer_kinds(config: Any) -> frozenset[str]:
    """The kinds of layers a configuration lists, or nothing where it lists none."""
    lists = (getattr(config, name, None) for name in _LAYER_KIND_NAMES)
    return frozenset(str(kind) for kinds in lists if isinstance(kinds, list | tuple) for kind in kinds)


def _settings(config: Any, pattern: re.Pattern[str]) -> list[str]:
    """Names of settings that match and are switched on."""
    names = (name for name in vars(config) if pattern.search(name))
    return sorted(name for name in names if getattr(config, name, None) not in (None, False, 0, "", [], {}))


def _encoder_decoder(config: Any, text: Any) -> str | None:
    crossing = config.is_encoder_decoder or config.model_type in DECODER_HALVES
    if not crossing and not _settings(text, re.compile(r"^add_cross_attention$|^cross_attention_layers$")):
        return None
    return "it is an encoder-decoder, or attends to an encoder; selfspec decodes decoder-only models"


def _other_media(config: Any, text: Any) -> str | None:
    parts = [*getattr(config, "sub_configs", {}), *vars(config)]
    named = sorted({part for part in parts if part.endswith("_config") and _OTHER_MEDIA.search(part)})
    if not named and config is text:
        return None
    held = ", ".join(named) or f"a {getattr(text, 'model_type', 'text')} part inside"
    return (
        f"it is built from several models ({held}) and selfspec decodes text-only models; "
        "save its language model as a model of its own and pass that"
    )


def _recurrent(_config: Any, text: Any) -> str | None:
    kinds = layer_kinds(text)
    recurrent = sorted(kind for kind in kinds if _RECURRENT_KIND.search(kind))
    if not kinds:
        recurrent = _settings(text, _RECURRENT_SETTING)
        recurrent += [text.model_type] if text.model_type in RECURRENT_FAMILIES else []
    if not recurrent:
        return None
    return f"its recurrent state ({recurrent[0]}) cannot be rolled back when a drafted token is rejected"


def _unknown_layers(_config: Any, text: Any) -> str | None:
    unknown = sorted(layer_kinds(text) - DECODABLE_LAYER_KINDS)
    if not unknown:
        return None
    return f"its layers of the kind {unknown[0]} are not known to forget rejected tokens by length alone"


def _looped(_config: Any, text: Any) -> str | None:
    loops = _settings(text, _LOOP_SETTING)
    return None if not loops else f"it runs the same layers several times per token ({loops[0]})"


def _shared_kv(_config: Any, text: Any) -> str | None:
    shared = _settings(text, _SHARED_KV_SETTING) + _settings(text, re.compile(r"^altup_num_inputs$"))
    if not shared:
        return None
    return f"its layers share keys and values or hidden states ({shared[0]}), so they cannot be skipped"


def _not_causal(config: Any, text: Any) -> str | None:
    family, architectures = str(config.model_type), " ".join(config.architectures or [])
    if _DIFFUSION.search(family) or _DIFFUSION.search(architectures):
        return "it denoises whole blocks of text instead of predicting the next token"
    if getattr(text, "prefix_lm", False) or family in PREFIX_FAMILIES:
        return "it reads the prompt in both directions (a prefix language model)"
    looks_ahead = getattr(text, "use_bidirectional_attention", False) is True
    if looks_ahead or getattr(text, "is_causal", True) is False:
        return "its attention looks ahead, so it does not predict the next token"
    if family in CACHELESS_FAMILIES:
        return "it keeps no key/value cache that could be shared with a draft"
    return _encoder_only(config)


def _encoder_only(config: Any) -> str | None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    encoders = ENCODER_FAMILIES | set(MODEL_FOR_MASKED_LM_MAPPING_NAMES)
    if getattr(config, "is_decoder", None) is False and config.model_type in encoders:
        return "it is an encoder: it fills gaps in a text instead of continuing it"
    return None


def _other_head(config: Any, _text: Any) -> str | None:
    heads = [name for name in config.architectures or [] if _OTHER_HEAD.search(name)]
    return None if not heads else f"this checkpoint is a {heads[0]}, which has no language-model head"


def _no_causal_class(config: Any, _text: Any) -> str | None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    own_code = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    if own_code or config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return None
    return "transformers has no causal language model for it"


def _no_block_mask(_config: Any, text: Any) -> str | None:
    """Families that compute something else for a block of draft tokens than for the same tokens one by one."""
    if text.model_type in ALIBI_FAMILIES or (text.model_type == "falcon" and getattr(text, "alibi", False)):
        return "it makes its position biases (ALiBi) from a two-dimensional mask, and a block of draft tokens has none"
    if text.model_type in SELECTING_FAMILIES:
        return "its attention picks keys among all tokens of a pass, rejected drafts included"
    return "its layers are laid out in an unknown way" if text.model_type in UNKNOWN_LAYOUTS else None


_RULES: tuple[Callable[[Any, Any], str | None], ...] = (
    _encoder_decoder,
    _recurrent,
    _shared_kv,
    _no_block_mask,
    _looped,
    _not_causal,
    _other_media,
    _unknown_layers,
    _other_head,
    _no_causal_class,
)
