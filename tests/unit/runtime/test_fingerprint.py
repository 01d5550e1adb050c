from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from pydantic import ValidationError
from tests.support.tiny_models import build_model, tiny_config
from tests.support.tiny_tokenizer import tiny_tokenizer
from transformers import AutoModelForCausalLM

from selfspec_runtime.fingerprint import (
    ModelFingerprint,
    compare,
    fingerprint,
    sha256_of_config,
    sha256_of_tokenizer,
)
from selfspec_runtime.loading import LoadedModel
from selfspec_runtime.model_spec import ModelSpec
from selfspec_runtime.weight_sample import sha256_of_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

RECORDED = ModelFingerprint(
    architecture="LlamaForCausalLM",
    num_hidden_layers=4,
    hidden_size=64,
    vocab_size=128,
    config_sha256="c",
    weights_sha256="w",
    tokenizer_sha256="t",
    chat_template_sha256="j",
    dtype="bfloat16",
    attn_implementation="selfspec",
    device="cpu",
)


def small(seed: int = 0, **overrides: Any) -> PreTrainedModel:
    return build_model(tiny_config("llama", num_hidden_layers=2, **overrides), seed=seed)


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return small()


def of(model: PreTrainedModel, **spec: Any) -> ModelFingerprint:
    return fingerprint(LoadedModel(model, tiny_tokenizer(), ModelSpec(model="m", **spec)))


def test_it_says_what_the_model_is(model: PreTrainedModel) -> None:
    found = of(model, adapter_path="/home/someone/adapters/mine/")
    assert found.architecture == "LlamaForCausalLM"
    assert (found.num_hidden_layers, found.hidden_size, found.vocab_size) == (2, 64, 128)
    assert (found.dtype, found.quantization, found.attn_implementation) == ("float32", "none", "selfspec")
    assert found.adapter == "mine"
    assert "/home" not in found.model_dump_json()


def test_it_survives_a_file_and_is_frozen(model: PreTrainedModel) -> None:
    found = of(model)
    assert ModelFingerprint.model_validate_json(found.model_dump_json()) == found
    with pytest.raises(ValidationError):
        found.dtype = "float16"  # type: ignore[misc]


def test_sharded_and_whole_files_and_reloads_agree(model: PreTrainedModel, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "whole")
    model.save_pretrained(tmp_path / "shards", max_shard_size="50KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    hashes = {sha256_of_weights(AutoModelForCausalLM.from_pretrained(tmp_path / name)) for name in ("whole", "shards")}
    assert hashes == {sha256_of_weights(model)}


def test_a_bfloat16_checkpoint_is_the_same_in_float32(model: PreTrainedModel) -> None:
    rounded = copy.deepcopy(model).to(torch.bfloat16)
    assert sha256_of_weights(rounded) == sha256_of_weights(copy.deepcopy(rounded).float())


@pytest.mark.parametrize("name", ["q_proj", "down_proj", "embed_tokens", "layernorm", "lm_head"])
def test_a_fine_tune_of_any_part_is_told_apart(model: PreTrainedModel, name: str) -> None:
    tuned = copy.deepcopy(model)
    with torch.no_grad():
        for path, parameter in tuned.named_parameters():
            if name in path:
                parameter.mul_(1.02)
    assert sha256_of_weights(tuned) != sha256_of_weights(model)


def test_equal_values_under_other_names_or_shapes_differ() -> None:
    wide, tall = torch.nn.Linear(8, 2, bias=False), torch.nn.Linear(4, 4, bias=False)
    for module in (wide, tall):
        torch.nn.init.constant_(module.weight, 0.5)
    assert sha256_of_weights(wide) != sha256_of_weights(tall)
    assert sha256_of_weights(torch.nn.ModuleDict({"a": wide})) != sha256_of_weights(torch.nn.ModuleDict({"b": wide}))


def test_the_layout_in_memory_does_not_matter() -> None:
    row_major = torch.nn.Linear(6, 5)
    column_major = copy.deepcopy(row_major)
    column_major.weight.data = row_major.weight.data.t().contiguous().t()
    assert not column_major.weight.is_contiguous()
    assert sha256_of_weights(row_major) == sha256_of_weights(column_major)


def test_scalars_and_empty_weights_are_no_obstacle() -> None:
    module = torch.nn.Module()
    module.register_parameter("scalar", torch.nn.Parameter(torch.tensor(0.5)))
    module.register_parameter("empty", torch.nn.Parameter(torch.zeros(0, 4)))
    before = sha256_of_weights(module)
    with torch.no_grad():
        module.scalar.add_(1.0)
    assert sha256_of_weights(module) != before


def test_volatile_settings_do_not_change_the_config_hash() -> None:
    config = tiny_config("llama")
    other = copy.deepcopy(config)
    other._name_or_path, other.transformers_version, other.dtype = "elsewhere", "5.99.0", torch.bfloat16
    other._attn_implementation = "eager"
    other.use_cache = False
    assert sha256_of_config(other) == sha256_of_config(config)
    other.rms_norm_eps = 0.1
    assert sha256_of_config(other) != sha256_of_config(config)


def test_tokenizers_are_told_apart_by_what_they_do() -> None:
    base = sha256_of_tokenizer(tiny_tokenizer())
    assert sha256_of_tokenizer(tiny_tokenizer()) == base
    assert sha256_of_tokenizer(tiny_tokenizer(129)) != base
    assert sha256_of_tokenizer(tiny_tokenizer(add_bos=True)) != base
    grown = tiny_tokenizer()
    grown.add_tokens(["<new>"])
    assert sha256_of_tokenizer(grown) != base


def test_padding_state_left_by_a_user_does_not_matter() -> None:
    used = tiny_tokenizer()
    used(["a", "longer text"], padding=True, truncation=True, max_length=5)
    assert sha256_of_tokenizer(used) == sha256_of_tokenizer(tiny_tokenizer())


def test_a_model_without_a_template_has_no_template_hash(model: PreTrainedModel) -> None:
    bare = LoadedModel(model, tiny_tokenizer(chat_template=None), ModelSpec(model="m"))
    assert fingerprint(bare).chat_template_sha256 is None
    assert of(model).chat_template_sha256 is not None


def test_the_same_model_has_no_mismatch(model: PreTrainedModel) -> None:
    assert compare(of(model), of(model)) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("architecture", "Qwen2ForCausalLM"),
        ("num_hidden_layers", 5),
        ("hidden_size", 32),
        ("vocab_size", 130),
        ("tokenizer_sha256", "other"),
    ],
)
def test_another_structure_is_refused_whatever_is_forced(field: str, value: object) -> None:
    actual = RECORDED.model_copy(update={field: value, "weights_sha256": "other"})
    (mismatch,) = compare(RECORDED, actual)
    assert (mismatch.field, mismatch.severity, mismatch.forceable) == (field, "refuse", False)
    assert "calibrate this model" in mismatch.message


def test_other_weights_of_one_architecture_are_refused_unless_forced() -> None:
    (mismatch,) = compare(RECORDED, RECORDED.model_copy(update={"weights_sha256": "other"}))
    assert (mismatch.field, mismatch.severity, mismatch.forceable) == ("weights_sha256", "refuse", True)
    assert "--force" in mismatch.message


@pytest.mark.parametrize(
    "field",
    ["config_sha256", "chat_template_sha256", "dtype", "quantization", "adapter", "attn_implementation", "device"],
)
def test_other_circumstances_are_warned_of(field: str) -> None:
    (mismatch,) = compare(RECORDED, RECORDED.model_copy(update={field: "other"}))
    assert (mismatch.field, mismatch.severity) == (field, "warn")
    assert "not measured" in mismatch.message


@pytest.mark.parametrize(
    ("changes", "severity"),
    [
        ({"quantization": "bnb-4bit"}, "warn"),
        ({"dtype": "float16"}, "warn"),
        ({"dtype": "float32"}, "refuse"),
        ({"attn_implementation": "eager"}, "refuse"),
    ],
)
def test_other_weights_are_refused_only_where_they_can_be_compared(changes: dict[str, str], severity: str) -> None:
    actual = RECORDED.model_copy(update={**changes, "weights_sha256": "other"})
    found = {mismatch.field: mismatch.severity for mismatch in compare(RECORDED, actual)}
    assert found["weights_sha256"] == severity


def test_refusals_come_first() -> None:
    actual = RECORDED.model_copy(update={"dtype": "float32", "device": "cuda", "hidden_size": 1})
    assert [mismatch.severity for mismatch in compare(RECORDED, actual)] == ["refuse", "warn", "warn"]
