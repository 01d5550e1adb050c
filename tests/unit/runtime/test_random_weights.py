"""Models of a configuration alone: whole, repeatable, and decodable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from tests.support.saved_models import save_config, save_model
from tests.support.tiny_models import MAIN_FAMILIES, prompt_ids, tiny_config

from selfspec_runtime.byte_tokenizer import byte_tokenizer
from selfspec_runtime.engine import Engine
from selfspec_runtime.errors import ModelError, UsageError
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.model_spec import ModelSpec
from selfspec_runtime.random_weights import NOTICE, fill, random_model
from selfspec_runtime.target import Target

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("family", MAIN_FAMILIES)
def test_a_configuration_is_enough(family: str, tmp_path: Path) -> None:
    loaded = random_model(ModelSpec(model=str(save_config(tmp_path, tiny_config(family))), dtype="float32"))
    assert loaded.notices == (NOTICE,)
    assert all(bool(parameter.isfinite().all()) for parameter in loaded.model.parameters())
    result = Engine(Target(loaded.model), loaded.tokenizer).generate(prompt_ids(), GenerationSettings(max_new_tokens=5))
    assert len(result.token_ids) == 5
    assert max(result.token_ids) < loaded.model.config.vocab_size


def test_the_same_seed_gives_the_same_weights_packed_or_not(tmp_path: Path) -> None:
    folder = str(save_config(tmp_path, tiny_config("llama")))
    spec = ModelSpec(model=folder, dtype="float32")
    packed, plain = random_model(spec), random_model(spec.model_copy(update={"pack": False}))
    ids = torch.tensor(prompt_ids())
    logits = [Target(each.model).logits(ids, Target(each.model).new_cache(), start=0) for each in (packed, plain)]
    assert torch.allclose(*logits, atol=1e-4)
    other = random_model(spec, seed=1)
    head = plain.model.get_output_embeddings().weight
    assert not torch.equal(head, other.model.get_output_embeddings().weight)
    assert float(head.std()) == pytest.approx(head.shape[1] ** -0.5, rel=0.1)


def test_tied_weights_stay_tied_and_the_dtype_is_the_configurations(tmp_path: Path) -> None:
    config = tiny_config("qwen3", dtype="bfloat16")
    loaded = random_model(ModelSpec(model=str(save_config(tmp_path, config)), pack=False))
    assert loaded.model.dtype == torch.bfloat16
    assert loaded.spec.dtype == "bfloat16"
    assert loaded.model.get_output_embeddings().weight is loaded.model.get_input_embeddings().weight


def test_biases_are_zero_and_rows_differ() -> None:
    model = torch.nn.ModuleDict({"linear": torch.nn.Linear(64, 70_000), "norm": torch.nn.LayerNorm(8)})
    fill(model)
    weight = model["linear"].weight
    assert float(model["linear"].bias.detach().abs().max()) == 0.0
    assert bool((model["norm"].weight == 1).all())
    assert weight.numel() > 4_194_301, "the numbers are used again here"
    assert len({tuple(row) for row in weight[::1000].tolist()}) == 70
    assert not torch.equal(weight[0], weight[65_536])


def test_a_tokenizer_beside_it_is_used(tmp_path: Path) -> None:
    loaded = random_model(ModelSpec(model=str(save_model(tmp_path)), dtype="float32"))
    assert loaded.tokenizer.decode(loaded.tokenizer("hello")["input_ids"]) == "hello"
    assert len(loaded.tokenizer) == loaded.model.config.vocab_size


@pytest.mark.parametrize("text", ["Hello, world.\n", "naïve 😀"])
def test_bytes_stand_in_for_tokens(text: str) -> None:
    tokenizer = byte_tokenizer(300)
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_a_small_vocabulary_holds_letters_first() -> None:
    ids = byte_tokenizer(64)("Hello, W9 €")["input_ids"]
    assert max(ids) < 64
    assert ids[0] != 0
    assert ids[-1] == 0


def test_what_cannot_be_random_is_refused(tmp_path: Path) -> None:
    folder = str(save_config(tmp_path, tiny_config("llama")))
    with pytest.raises(UsageError, match="Random weights go without --quantization"):
        random_model(ModelSpec(model=folder, quantization="bnb-4bit"))
    with pytest.raises(ModelError):
        random_model(ModelSpec(model=str(tmp_path / "nothing" / "here")))
