from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.saved_models import save_config, save_model
from transformers import AutoConfig, AutoModelForCausalLM

from selfspec_runtime.errors import ModelError, UnsupportedModelError, UsageError
from selfspec_runtime.fingerprint import fingerprint
from selfspec_runtime.loading import LoadedModel, load_model, preflight
from selfspec_runtime.memory import weight_bytes
from selfspec_runtime.model_spec import ModelSpec

IDS = torch.tensor([[5, 9, 30, 31, 7]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "llama")


def load(model: Path, **settings: Any) -> LoadedModel:
    return load_model(ModelSpec(model=str(model), device="cpu", **settings))


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2", "gemma3_text"])
def test_a_folder_loads_ready_to_decode(tmp_path: Path, family: str) -> None:
    loaded = load(save_model(tmp_path / family, family, num_hidden_layers=4))
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert loaded.spec.dtype == "float32"
    assert loaded.spec.attn_implementation == "selfspec"
    assert loaded.notices == ()
    stock = AutoModelForCausalLM.from_pretrained(tmp_path / family, attn_implementation="eager")
    torch.testing.assert_close(loaded.model(IDS).logits, stock(IDS).logits, rtol=1e-4, atol=1e-5)


def test_nothing_is_left_auto_and_the_resolved_spec_loads_again(folder: Path) -> None:
    loaded = load(folder)
    assert "auto" not in {loaded.spec.dtype, loaded.spec.device, loaded.spec.attn_implementation}
    assert load_model(loaded.spec).spec == loaded.spec


def test_the_config_is_the_checkpoints_own(folder: Path) -> None:
    stock = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    assert load(folder).model.config.to_dict() == stock.config.to_dict()
    assert load(folder).model.generation_config.to_dict() == stock.generation_config.to_dict()


def test_the_dtype_asked_for_is_taken(folder: Path) -> None:
    loaded = load(folder, dtype="bfloat16")
    assert loaded.model.dtype == torch.bfloat16
    assert loaded.spec.dtype == "bfloat16"


@pytest.mark.parametrize(("fast", "expected"), [(True, torch.bfloat16), (False, torch.float32)])
def test_bfloat16_runs_as_such_only_where_it_is_fast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast: bool, expected: torch.dtype
) -> None:
    monkeypatch.setattr("selfspec_runtime.precision.has_fast_bfloat16_cpu", lambda: fast)
    loaded = load(save_model(tmp_path / "m", dtype="bfloat16"))
    assert loaded.model.dtype == expected
    assert any("float32" in notice for notice in loaded.notices) == (not fast)


def test_the_dtype_is_read_from_the_weights_where_the_config_is_silent(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "m", dtype="float16")
    edit_config(folder, dtype=None)
    assert preflight(ModelSpec(model=str(folder), device="cpu")).notices[0].startswith("The weights are float16")


@pytest.mark.parametrize("requested", ["eager", "sdpa", "selfspec"])
def test_the_attention_asked_for_is_taken(folder: Path, requested: str) -> None:
    loaded = load(folder, attn_implementation=requested)
    assert loaded.model.config._attn_implementation == requested
    assert loaded.spec.attn_implementation == requested


def test_an_attention_that_does_not_exist_is_a_usage_error(folder: Path) -> None:
    with pytest.raises(UsageError, match="--attn-implementation nonsense"):
        load(folder, attn_implementation="nonsense")


def test_a_family_outside_of_the_attention_interface_runs_eager(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "m", "mpt")
    assert load(folder).spec.attn_implementation == "eager"


def test_a_refused_attention_falls_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "selfspec_runtime.loading.attention_candidates", lambda *_: ("unregistered", "also-unregistered", "sdpa")
    )
    assert load(folder).spec.attn_implementation == "sdpa"


def test_shards_and_pickles_load_like_one_safetensors_file(folder: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    whole = load(folder).model(IDS).logits
    for name, save in {
        "shards": lambda path: model.save_pretrained(path, max_shard_size="50KB"),
        "pickle": lambda path: (
            model.config.save_pretrained(path),
            torch.save(model.state_dict(), path / "pytorch_model.bin"),
        ),
    }.items():
        (tmp_path / name).mkdir()
        save(tmp_path / name)
        load(folder).tokenizer.save_pretrained(tmp_path / name)
        assert torch.equal(load(tmp_path / name).model(IDS).logits, whole)


@pytest.mark.parametrize("family", ["mamba", "t5", "gemma3", "bert", "qwen3_next", "gemma3n_text"])
def test_families_are_refused_before_weights_are_looked_for(tmp_path: Path, family: str) -> None:
    folder = save_config(tmp_path / family, AutoConfig.for_model(family))
    with pytest.raises(UnsupportedModelError, match=family):
        load(folder)


def test_a_family_unknown_to_transformers_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama99"}')
    with pytest.raises(UnsupportedModelError, match="llama99"):
        load(tmp_path)


@pytest.mark.parametrize(
    "config", ["{", "[]", "", '{"architectures": ["X"]}', '{"model_type": "llama", "hidden_size": "x"}']
)
def test_a_broken_config_is_a_model_error(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ModelError, match=str(tmp_path)):
        load(tmp_path)


def test_code_in_a_checkpoint_is_neither_run_nor_asked_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "own", "auto_map": {"AutoConfig": "code.Own"}}')
    (tmp_path / "code.py").write_text(f"from pathlib import Path; Path({str(tmp_path / 'ran')!r}).touch()")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked a question"))
    with pytest.raises(ModelError, match="--trust-remote-code"):
        load(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_missing_tokenizer_is_said(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "m")
    for path in folder.glob("*token*"):
        path.unlink()
    with pytest.raises(ModelError, match="tokenizer"):
        load(folder)


def test_a_tokenizer_larger_than_the_model_is_noticed(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "m")
    tokenizer = load(folder).tokenizer
    tokenizer.add_tokens(["<extra>"])
    tokenizer.save_pretrained(folder)
    assert "129 tokens and the model 128" in load(folder).notices[0]


def test_weights_that_the_file_lacks_are_not_made_up(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "m")
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lack 1 weights of LlamaForCausalLM \(model\.layers\.1\.mlp\.up_proj"):
        load(folder)


def test_weights_of_another_shape_are_a_model_error(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "m")
    edit_config(folder, intermediate_size=64)
    with pytest.raises(ModelError) as caught:
        load(folder)
    message = str(caught.value)
    assert re.search(r"model\.layers\.0\.mlp\.\w+_proj\.weight has the shape \[\d+, \d+\] in the file, and \[", message)
    assert "64" in message
    assert "5 more weights do not fit." in message


def test_weights_that_the_config_does_not_describe_are_told(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "m", num_hidden_layers=3)
    assert not any("does not use" in notice for notice in load(folder).notices)
    edit_config(folder, num_hidden_layers=2)
    told = next(notice for notice in load(folder).notices if "does not use" in notice)
    assert "model.layers.2." in told
    assert "with 2 layers" in told


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers in config.json is 0"),
        ({"num_hidden_layers": -1}, "num_hidden_layers in config.json is -1"),
        ({"num_hidden_layers": "many"}, r"num_hidden_layers.*int.*str"),
        ({"dtype": "float99"}, "the dtype in config.json is 'float99'"),
        (
            {"rope_parameters": {"rope_type": "nonsense", "rope_theta": 1.0}},
            r"rope_parameters\.rope_type in config.json is 'nonsense', which transformers does not know",
        ),
    ],
)
def test_a_setting_that_cannot_be_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = save_model(tmp_path / "m")
    edit_config(folder, **changes)
    with pytest.raises(ModelError, match=message):
        load(folder)


@pytest.mark.parametrize("content", ["{bad", ""])
def test_a_broken_generation_config_is_told(tmp_path: Path, content: str) -> None:
    folder = save_model(tmp_path / "m")
    assert not any("generation_config" in notice for notice in load(folder).notices)
    (folder / "generation_config.json").write_text(content)
    assert any("generation_config.json cannot be read as JSON" in notice for notice in load(folder).notices)
    (folder / "generation_config.json").write_text("[]")
    with pytest.raises(ModelError, match=r"generation_config\.json holds no settings"):
        load(folder)


def test_a_hub_id_that_cannot_be_fetched_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError) as caught:
        load_model(ModelSpec(model="nobody/has-this-model"))
    assert "could not be fetched" in str(caught.value)
    assert "hf download nobody/has-this-model" in str(caught.value)


def test_a_device_that_is_not_here_is_said_before_loading(folder: Path) -> None:
    with pytest.raises(UsageError, match="'cuda:99'"):
        load_model(ModelSpec(model=str(folder), device="cuda:99"))


def test_preflight_reads_no_weights(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *_, **__: pytest.fail("weights were read"))
    ready = preflight(ModelSpec(model=str(folder), device="cpu", dtype="bfloat16"))
    assert (ready.architecture, ready.num_hidden_layers, ready.hidden_size) == ("LlamaForCausalLM", 2, 64)
    assert (ready.vocab_size, ready.context_tokens, ready.has_chat_template) == (128, 512, True)


@pytest.mark.parametrize("settings", [{}, {"dtype": "bfloat16"}])
def test_preflight_knows_the_memory_of_the_weights(folder: Path, settings: dict[str, Any]) -> None:
    packed, plain = (load(folder, pack=pack, **settings).model for pack in (True, False))
    ready = preflight(ModelSpec(model=str(folder), device="cpu", **settings))
    assert ready.weight_bytes == weight_bytes(plain) == weight_bytes(packed)
    assert ready.weight_file_bytes == (folder / "model.safetensors").stat().st_size


def test_a_model_without_a_chat_template_is_seen(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "m")
    (folder / "chat_template.jinja").unlink()
    assert not preflight(ModelSpec(model=str(folder), device="cpu")).has_chat_template


DEMO = Path(__file__).parents[3] / "models" / "SmolLM2-135M-Instruct"


@pytest.mark.demo
@pytest.mark.skipif(not DEMO.is_dir(), reason="make model")
def test_the_demo_model_knows_the_capital_of_france() -> None:
    loaded = load(DEMO)
    turn = [{"role": "user", "content": "What is the capital of France?"}]
    ids = loaded.tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    text = loaded.model.generate(**ids, max_new_tokens=20, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert loaded.tokenizer.decode(text) == "The capital of France is Paris.<|im_end|>"


def test_a_model_is_packed_only_where_asked_and_stays_the_same_model(folder: Path) -> None:
    packed, plain = (load(folder, pack=pack) for pack in (True, False))
    kinds = {type(module).__name__ for module in packed.model.modules()}
    assert "LeanLayer" in kinds
    assert "LeanLayer" not in {type(module).__name__ for module in plain.model.modules()}
    assert fingerprint(packed) == fingerprint(plain)
