"""Tiny random models of many families, and models made so that the right answer is known.

Everything is float32, seeded and offline. Cached models are shared by the tests of a process: whatever changes
weights (`planted` and its like) works on a copy.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from selfspec_runtime.architecture import find_parts
from selfspec_runtime.attention import register_attention
from selfspec_runtime.target import Target

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor, nn
    from transformers import PreTrainedConfig, PreTrainedModel

VOCAB_SIZE = 128
CONTEXT = 512
WINDOW = 16

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GPT2: dict[str, Any] = {
    "n_positions": CONTEXT,
    "n_embd": 64,
    "n_layer": 4,
    "n_head": 4,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
_GEMMA: dict[str, Any] = {"sliding_window": WINDOW, "query_pre_attn_scalar": 16}
_SLIDING = ["sliding_attention", "full_attention"]
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}

MAIN_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"attention_bias": True},
    "qwen3": {"tie_word_embeddings": True},
    "mistral": {"sliding_window": WINDOW},
    "gemma3_text": {**_GEMMA, "layer_types": [*_SLIDING, *_SLIDING], "num_key_value_heads": 1},
    "phi3": {},
    "gpt2": _GPT2,
    "gpt_neox": {"num_key_value_heads": None},
}
MORE_FAMILIES: dict[str, dict[str, Any]] = {
    "gemma2": {**_GEMMA, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 8.0},
    "olmo2": {},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {**_EXPERTS, "decoder_sparse_step": 1},
    "smollm3": {"no_rope_layers": [1, 1, 1, 0]},
    "granite": {
        "logits_scaling": 2.0,
        "attention_multiplier": 0.25,
        "residual_multiplier": 0.7,
        "embedding_multiplier": 2.0,
    },
    "cohere": {"logit_scale": 0.5},
    "opt": {"ffn_dim": 128, "word_embed_proj_dim": 64, "dropout": 0.0},
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2, "head_dim": None},
    "starcoder2": {"sliding_window": WINDOW},
    "mpt": {"d_model": 64, "n_heads": 4, "n_layers": 4, "max_seq_len": CONTEXT},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW},
}
#: Families that cannot run on selfspec's attention, with what they run on instead.
OTHER_ATTENTION = {"falcon": "sdpa", "mpt": "eager"}
EMBEDDING_NAMES = ("embed", "wte", "wpe")
FAMILIES = MAIN_FAMILIES | MORE_FAMILIES


def tiny_config(family: str, **overrides: Any) -> PreTrainedConfig:
    """The configuration of a tiny model; ``overrides`` replace its values."""
    values = {**_COMMON, **FAMILIES.get(family, {}), **overrides}
    if "head_dim" in values and values["head_dim"] is None:
        del values["head_dim"]  # some families derive it and refuse to be told
    return AutoConfig.for_model(family, **values)


def build_model(config: PreTrainedConfig, *, attention: str = "selfspec", seed: int = 0) -> PreTrainedModel:
    """A model with random weights whose logits spread enough for ties to be rare."""
    register_attention()
    # A copy: the model writes the attention's name into the configuration that it is given.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # for what `randomize` starts from
        model = AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation=attention)
    randomize(model, seed=seed)
    model.generation_config.eos_token_id = None
    return model.float().eval().requires_grad_(False)


@cache
def tiny_model(family: str, *, attention: str | None = None, seed: int = 0) -> PreTrainedModel:
    """The tiny model of a family; shared, so never to be changed. Runs on selfspec's attention where it can."""
    return build_model(tiny_config(family), attention=attention or attention_of(family), seed=seed)


def attention_of(family: str) -> str:
    """What a family's tiny model runs on."""
    return OTHER_ATTENTION.get(family, "selfspec")


@cache
def tiny_target(family: str, *, attention: str | None = None) -> Target:
    """The tiny model of a family as selfspec sees it; shared."""
    return Target(tiny_model(family, attention=attention))


@torch.no_grad()
def randomize(model: nn.Module, *, seed: int = 0) -> None:
    """Draws every matrix with unit gain and every vector near its default, in the order of their names."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim < 2:
            parameter.add_(0.1 * noise)
        elif any(part in name for part in EMBEDDING_NAMES):
            # Small, so that the layers and not the token itself decide: else the text repeats one token.
            parameter.copy_(0.3 * noise)
        else:
            gain = 2.0 if any(part in name for part in ("layers", ".h.", "blocks")) else 1.0
            parameter.copy_(noise * gain * parameter.shape[-1] ** -0.5)


@torch.no_grad()
def hopeless(model: PreTrainedModel, *, seed: int = 0, growth: float = 3.0, gain: float = 3.0) -> PreTrainedModel:
    """A copy that no draft can guess: each token depends chaotically on the whole text before it.

    Sharp attention and large values make the map chaotic; each layer writes ``growth`` times what the one before
    writes, so that every exit and every skipped sub-layer misses most of it. For families with separate query and
    key projections and an untied head; any size, and bfloat16 as well.
    """
    changed = copy.deepcopy(model)
    randomize(changed, seed=seed)
    for name, parameter in changed.named_parameters():
        if any(part in name for part in ("q_proj.w", "k_proj.w", "v_proj.w", "gate_proj.w", "up_proj.w")):
            parameter.mul_(gain)
    for index, layer in enumerate(find_parts(changed).layers):
        _scale_outputs(layer, growth**index)
    head = changed.get_output_embeddings().weight
    assert head is not changed.get_input_embeddings().weight, "a tied head favours the token before"
    head.div_(head.float().norm(dim=1, keepdim=True).to(head.dtype))  # no token is likelier than others by its norm
    head.mul_(4.0)
    return changed


def prompt_ids(length: int = 12, *, seed: int = 0, vocab_size: int = VOCAB_SIZE) -> list[int]:
    """Random token ids, none of them special."""
    generator = torch.Generator().manual_seed(1_000 + seed)
    return torch.randint(4, vocab_size, (length,), generator=generator).tolist()


@torch.no_grad()
def planted(model: PreTrainedModel, *, exit_layer: int, scale: float = 0.0) -> PreTrainedModel:
    """A copy whose layers from ``exit_layer`` on write ``scale`` times what they wrote into the residual stream.

    At 0 the exit equals the full model; at 1 nothing has changed.
    """
    changed = copy.deepcopy(model)
    for layer in find_parts(changed).layers[exit_layer:]:
        _scale_outputs(layer, scale)
    return changed


@torch.no_grad()
def planted_skip(
    model: PreTrainedModel, *, attention: Iterable[int] = (), mlp: Iterable[int] = (), scale: float = 0.0
) -> PreTrainedModel:
    """A copy in which the named sub-layers contribute ``scale`` times what they did: nothing, by default."""
    changed = copy.deepcopy(model)
    parts = find_parts(changed)
    for indices, name in ((attention, parts.attention_name), (mlp, parts.mlp_name)):
        for index in indices:
            _scale_outputs(getattr(parts.layers[index], str(name)), scale)
    return changed


OUTPUT_NAMES = (
    "o_proj", "out_proj", "dense", "c_proj",  # attention
    "down_proj", "dense_4h_to_h", "fc2", "fc_out", "w2",  # MLP
)  # fmt: skip


def _scale_outputs(module: nn.Module, scale: float) -> None:
    found = list(_output_parameters(module))
    assert found, f"{type(module).__name__} has no output projection"
    for parameter in found:
        parameter.mul_(scale)


def _output_parameters(module: nn.Module) -> Iterator[Tensor]:
    """Weights and biases of the projections into the residual stream, and of a norm that follows them."""
    for name, parameter in module.named_parameters():
        owner = name.split(".")
        if any(part in OUTPUT_NAMES or part.removesuffix("_bias") in OUTPUT_NAMES for part in owner):
            yield parameter
