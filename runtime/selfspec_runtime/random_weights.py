"""A model of a given shape with random weights, which costs what a trained one costs and says nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from selfspec_runtime.attention_choice import attention_candidates, is_about_attention
from selfspec_runtime.byte_tokenizer import byte_tokenizer
from selfspec_runtime.checkpoint_config import load_config
from selfspec_runtime.checkpoint_tokenizer import load_tokenizer
from selfspec_runtime.errors import ModelError, UsageError
from selfspec_runtime.families import check_family, text_config
from selfspec_runtime.loading import LoadedModel
from selfspec_runtime.model_place import find_model
from selfspec_runtime.packing import pack_model
from selfspec_runtime.precision import choose_device
from selfspec_runtime.preflight import model_class_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from selfspec_runtime.model_place import ModelPlace
    from selfspec_runtime.model_spec import ModelSpec

NOTICE = "The weights are random: what is measured is the shape, and the text means nothing"

#: Numbers drawn; every matrix is filled from them, one after the other. A prime, so that no two rows are alike.
POOL_SIZE = 4_194_301


def random_model(spec: ModelSpec, *, seed: int = 0) -> LoadedModel:
    """Makes a model of its configuration alone.

    Args:
        spec: A folder that holds ``config.json``, or a model's name; the dtype is the configuration's own where it
            is ``auto``, and bfloat16 where that does not say. A tokenizer is used where there is one, else bytes are.
        seed: Of the weights.

    Raises:
        ModelError: There is no configuration, or no model can be made of it.
        UnsupportedModelError: The family cannot be decoded losslessly.
        UsageError: The device cannot be had, or a quantisation or an adapter was asked for.
    """
    if spec.quantization != "none" or spec.adapter_path is not None:
        message = "Random weights go without --quantization and --adapter-path. Leave them out."
        raise UsageError(message)
    place, device = find_model(spec), choose_device(spec.device)
    config = load_config(spec, place)
    check_family(config)
    dtype = _dtype(spec, config)
    model = _first_that_builds(
        spec, config, dtype, attention_candidates(model_class_of(config), spec.attn_implementation)
    )
    fill(model.to(device), seed=seed)
    if spec.pack and device.type == "cpu":
        pack_model(model)
    chosen = {"model": place.name, "device": str(device), "dtype": str(dtype).removeprefix("torch.")}
    return LoadedModel(model, _tokenizer(spec, place, config), spec.model_copy(update=chosen), (NOTICE,))


@torch.no_grad()
def fill(model: nn.Module, *, seed: int = 0) -> None:
    """Draws every matrix with unit gain; vectors are 1, and biases 0.

    Args:
        model: Changed in place; tied weights stay tied.
        seed: Of the numbers, which are the same for every dtype up to rounding.
    """
    pool = torch.randn(POOL_SIZE, generator=torch.Generator().manual_seed(seed))
    offset = 0
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
        else:
            offset = _fill_from(pool, parameter, offset)


def _fill_from(pool: Tensor, parameter: Tensor, offset: int) -> int:
    flat = parameter.view(-1)
    scaled = (pool * parameter.shape[-1] ** -0.5).to(parameter.dtype).to(parameter.device)
    done = 0
    while done < flat.numel():
        taken = min(flat.numel() - done, POOL_SIZE - offset)
        flat[done : done + taken] = scaled[offset : offset + taken]
        done, offset = done + taken, (offset + taken) % POOL_SIZE
    return offset


def _first_that_builds(spec: ModelSpec, config: Any, dtype: torch.dtype, candidates: Sequence[str]) -> PreTrainedModel:
    attention, *others = candidates
    try:
        return _built(spec, config, dtype, attention)
    except ValueError as error:
        if not others or not is_about_attention(error):
            message = f"No model can be made of the configuration of {spec.model}: {error}"
            raise ModelError(message) from error
    return _first_that_builds(spec, config, dtype, others)


def _built(spec: ModelSpec, config: Any, dtype: torch.dtype, attention: str) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    with no_init_weights():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation=attention, trust_remote_code=spec.trust_remote_code
        )
    model.tie_weights()
    return model.eval().requires_grad_(False)


def _dtype(spec: ModelSpec, config: Any) -> torch.dtype:
    if spec.dtype != "auto":
        named: torch.dtype = getattr(torch, spec.dtype)
        return named
    declared = getattr(text_config(config), "dtype", None)
    return declared if isinstance(declared, torch.dtype) else torch.bfloat16


def _tokenizer(spec: ModelSpec, place: ModelPlace, config: Any) -> PreTrainedTokenizerBase:
    try:
        return load_tokenizer(spec, place, None, config)[0]
    except ModelError:
        return byte_tokenizer(int(text_config(config).vocab_size))
