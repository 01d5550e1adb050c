from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, TaskType, get_peft_model
from tests.support.saved_models import PACKABLE, save_model
from tests.support.tiny_tokenizer import tiny_tokenizer
from transformers import AutoModelForCausalLM, PreTrainedModel

from selfspec_runtime.errors import ModelError, UnsupportedModelError
from selfspec_runtime.loading import LoadedModel, load_model
from selfspec_runtime.model_spec import ModelSpec

IDS = torch.tensor([[5, 9, 30, 31, 7]])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("base") / "base", **PACKABLE)


@pytest.fixture(scope="module")
def lora(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_lora(base, tmp_path_factory.mktemp("adapters") / "lora")


def save_lora(base: Path, folder: Path, **settings: Any) -> Path:
    torch.manual_seed(0)
    config = LoraConfig(task_type=TaskType.CAUSAL_LM, init_lora_weights=False, r=4, **settings)
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).save_pretrained(folder)
    return folder


def load(base: Path, adapter: Path, **settings: Any) -> LoadedModel:
    return load_model(ModelSpec(model=str(base), adapter_path=str(adapter), device="cpu", **settings))


def test_an_adapter_is_merged_and_leaves_an_ordinary_model(base: Path, lora: Path) -> None:
    from peft import PeftModel

    loaded = load(base, lora)
    reference = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), str(lora)).eval()
    torch.testing.assert_close(loaded.model(IDS).logits, reference(IDS).logits, rtol=1e-4, atol=1e-5)
    plain = load_model(ModelSpec(model=str(base), device="cpu")).model
    assert type(loaded.model) is type(plain)
    assert {name for name, _ in loaded.model.named_modules()} == {name for name, _ in plain.named_modules()}
    assert not torch.allclose(loaded.model(IDS).logits, plain(IDS).logits, atol=1e-2)
    assert "merged" in loaded.notices[-1]
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())


def test_quantised_weights_keep_the_adapter_beside_them(base: Path, lora: Path) -> None:
    loaded = load(base, lora, quantization="bnb-4bit")
    plain = load_model(ModelSpec(model=str(base), device="cpu", quantization="bnb-4bit"))
    assert isinstance(loaded.model, PreTrainedModel)
    assert type(loaded.model) is type(plain.model)
    assert any("lora_A" in name for name, _ in loaded.model.named_parameters())
    with torch.no_grad():
        assert not torch.allclose(loaded.model(IDS).logits, plain.model(IDS).logits, atol=1e-2)
    assert "beside" in loaded.notices[-1]
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())


def test_the_tokenizer_beside_an_adapter_wins(base: Path, tmp_path: Path) -> None:
    folder = save_lora(base, tmp_path / "lora")
    tiny_tokenizer(chat_template="{{ messages[0]['content'] }}").save_pretrained(folder)
    loaded = load(base, folder)
    assert loaded.tokenizer.chat_template == "{{ messages[0]['content'] }}"
    assert any("tokenizer" in notice for notice in loaded.notices)


def test_the_adapter_folder_alone_names_its_base(base: Path, lora: Path) -> None:
    with pytest.raises(ModelError) as caught:
        load_model(ModelSpec(model=str(lora), device="cpu"))
    assert f"--model {base} --adapter-path {lora}" in str(caught.value)


def test_a_missing_peft_is_said_before_weights_are_read(
    base: Path, lora: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "peft" else real(name, *more))
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *_, **__: pytest.fail("weights were read"))
    with pytest.raises(ModelError, match=r"pip install 'selfspec\[peft\]'"):
        load(base, lora)


def test_a_folder_that_is_no_adapter_is_said(base: Path, lora: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no adapter_config\.json"):
        load(base, tmp_path)
    with pytest.raises(ModelError, match=f"Did you mean {lora}"):
        load(base, lora.parent / "lorra")


def test_virtual_tokens_are_refused(base: Path, tmp_path: Path) -> None:
    config = PromptTuningConfig(task_type=TaskType.CAUSAL_LM, num_virtual_tokens=3)
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match="PROMPT_TUNING"):
        load(base, tmp_path)


def test_an_adapter_of_another_model_names_its_base(lora: Path, base: Path, tmp_path: Path) -> None:
    other = save_model(tmp_path / "other", hidden_size=32, head_dim=8, **PACKABLE)
    with pytest.raises(ModelError, match="does not fit LlamaForCausalLM") as caught:
        load(other, lora)
    assert str(base) in str(caught.value)


def test_an_adapter_for_modules_that_the_model_lacks_is_refused(lora: Path, tmp_path: Path) -> None:
    other = save_model(tmp_path / "other", "gpt2")
    with pytest.raises(ModelError, match="does not fit GPT2LMHeadModel"):
        load(other, lora)


@pytest.mark.parametrize("content", ["{", '{"peft_type": "NONSENSE"}', "{}"])
def test_an_unreadable_adapter_config_is_said(base: Path, tmp_path: Path, content: str) -> None:
    (tmp_path / "adapter_config.json").write_text(content)
    with pytest.raises(ModelError, match=r"adapter_config\.json"):
        load(base, tmp_path)


def test_an_adapter_that_lost_its_weights_is_refused(base: Path, lora: Path, tmp_path: Path) -> None:
    settings = json.loads((lora / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelError):
        load(base, tmp_path)
