from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from bitsandbytes.nn import Linear4bit
from tests.support.saved_models import PACKABLE, save_model
from tests.support.tiny_models import tiny_config
from transformers import AutoConfig, AutoModelForCausalLM

from selfspec_runtime import quantized_loading as module
from selfspec_runtime.errors import UnsupportedModelError, UsageError
from selfspec_runtime.fingerprint import compare, fingerprint
from selfspec_runtime.loading import LoadedModel, load_model, preflight
from selfspec_runtime.memory import weight_bytes
from selfspec_runtime.model_spec import ModelSpec
from selfspec_runtime.native.library import native_status
from selfspec_runtime.native.linear import FourBitLinear
from selfspec_runtime.quantized_loading import check_quantization, quantized_loading, stored_quantization

IDS = torch.tensor([[5, 9, 30, 31, 7]])
CPU, CUDA, MPS = torch.device("cpu"), torch.device("cuda"), torch.device("mps")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "llama", **PACKABLE)


def load(model: Path, **settings: Any) -> LoadedModel:
    """As bitsandbytes leaves it, unless packing is asked for."""
    return load_model(ModelSpec(model=str(model), device="cpu", **{"pack": False, **settings}))


def logits(loaded: LoadedModel) -> torch.Tensor:
    with torch.no_grad():
        return loaded.model(IDS).logits.float()


def quantised(loaded: LoadedModel) -> dict[str, Linear4bit]:
    return {name: m for name, m in loaded.model.named_modules() if isinstance(m, Linear4bit)}


def pretend(monkeypatch: pytest.MonkeyPatch, *, packs: bool, fast: bool) -> None:
    monkeypatch.setattr(module, "packs_weights", lambda device: packs and device.type == "cpu")
    monkeypatch.setattr("selfspec_runtime.preflight.has_fast_bfloat16", lambda _device: fast)


def test_four_bits_on_a_cpu_stay_close_to_the_model(folder: Path) -> None:
    loaded = load(folder, quantization="bnb-4bit")
    assert len(quantised(loaded)) == 2 * 7
    assert type(loaded.model.lm_head) is torch.nn.Linear
    whole, four_bit = logits(load(folder)), logits(loaded)
    assert torch.nn.functional.cosine_similarity(whole, four_bit, dim=-1).min() > 0.8
    assert not torch.allclose(whole, four_bit, atol=1e-3)
    assert loaded.spec.quantization == "bnb-4bit"


@pytest.mark.skipif(native_status().kernels is None, reason=native_status().reason or "kernels at hand")
def test_a_packed_model_in_four_bits_is_the_same_model_on_the_own_kernels(folder: Path) -> None:
    stock, packed = (load(folder, quantization="bnb-4bit", dtype="bfloat16", pack=pack) for pack in (False, True))
    assert not quantised(packed)
    assert sum(isinstance(each, FourBitLinear) for each in packed.model.modules()) == 2 * 4
    assert torch.nn.functional.cosine_similarity(logits(stock), logits(packed), dim=-1).min() > 0.999
    assert fingerprint(packed) == fingerprint(stock)
    # Scales are in four bytes, where bitsandbytes may keep two.
    assert weight_bytes(packed.model) == pytest.approx(weight_bytes(stock.model), rel=0.05)


@pytest.mark.parametrize(("fast", "compute"), [(True, torch.bfloat16), (False, torch.float32)])
def test_products_are_never_left_in_a_slow_dtype_without_a_word(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fast: bool, compute: torch.dtype
) -> None:
    pretend(monkeypatch, packs=fast, fast=fast)
    loaded = load(folder, quantization="bnb-4bit")
    assert {m.compute_dtype for m in quantised(loaded).values()} == {compute}
    assert loaded.model.dtype == compute
    assert any("slower" in notice for notice in loaded.notices) == (not fast)


def test_weights_that_the_cpu_kernel_cannot_pack_stay_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, packs=True, fast=True)
    folder = save_model(tmp_path / "m", intermediate_size=96)
    loaded = load(folder, quantization="bnb-4bit")
    assert {name.split(".")[-1] for name in quantised(loaded)} == {
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
    }
    assert type(loaded.model.lm_head) is torch.nn.Linear
    assert any(notice.startswith("2 linear weights stay unquantised") for notice in loaded.notices)
    assert logits(loaded).isfinite().all()


def test_gpt2s_transposed_weights_are_checked_the_right_way_round(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, packs=True, fast=True)
    config = tiny_config("gpt2", n_embd=64, n_inner=96)
    model_class = AutoModelForCausalLM._model_mapping[type(config)]
    heads, unfit = module.unpackable_modules(config, model_class)
    assert heads == ["lm_head"]
    assert {name.split(".")[-2] + "." + name.split(".")[-1] for name in unfit} == {"mlp.c_proj"}


def test_the_estimate_is_what_the_weights_take(folder: Path) -> None:
    loaded = load(folder, quantization="bnb-4bit", dtype="bfloat16")
    scales = sum(m.weight.quant_state.absmax.nbytes for m in quantised(loaded).values())
    held = sum(parameter.nbytes for parameter in loaded.model.parameters()) + scales
    spec = ModelSpec(model=str(folder), device="cpu", quantization="bnb-4bit", dtype="bfloat16")
    assert preflight(spec).weight_bytes == held


def test_the_fingerprint_does_not_depend_on_the_first_pass(folder: Path) -> None:
    loaded = load(folder, quantization="bnb-4bit")
    before = fingerprint(loaded)
    logits(loaded)
    assert fingerprint(loaded) == before
    assert before.quantization == "bnb-4bit"
    found = compare(fingerprint(load(folder)), before)
    assert {mismatch.severity for mismatch in found} == {"warn"}


def test_two_quantised_fine_tunes_are_told_apart(folder: Path, tmp_path: Path) -> None:
    other = save_model(tmp_path / "other", seed=1, **PACKABLE)
    prints = [fingerprint(load(each, quantization="bnb-4bit")) for each in (folder, other)]
    assert [m.severity for m in compare(*prints)] == ["refuse"]


@pytest.fixture(scope="module")
def stored(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint saved in four bits, with bitsandbytes' slow default for products."""
    loaded = load(folder, quantization="bnb-4bit", dtype="bfloat16")
    saved = tmp_path_factory.mktemp("stored") / "four-bit"
    loaded.model.save_pretrained(saved)
    loaded.tokenizer.save_pretrained(saved)
    config = json.loads((saved / "config.json").read_text())
    config["quantization_config"]["bnb_4bit_compute_dtype"] = "float32"
    (saved / "config.json").write_text(json.dumps(config))
    return saved


def test_a_checkpoint_in_four_bits_runs_as_stored(folder: Path, stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfspec_runtime.preflight.has_fast_bfloat16", lambda _device: True)
    loaded = load(stored)
    assert {m.compute_dtype for m in quantised(loaded).values()} == {torch.bfloat16}
    assert loaded.spec.quantization == "bnb-4bit"
    fresh = load(folder, quantization="bnb-4bit", dtype="bfloat16")
    assert torch.equal(logits(loaded), logits(fresh))
    assert fingerprint(loaded).weights_sha256 == fingerprint(fresh).weights_sha256


def test_a_checkpoint_in_four_bits_that_this_cpu_cannot_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, packs=False, fast=True)
    loaded = load(save_model(tmp_path / "m", intermediate_size=96), quantization="bnb-4bit")
    loaded.model.save_pretrained(tmp_path / "saved")
    loaded.tokenizer.save_pretrained(tmp_path / "saved")
    pretend(monkeypatch, packs=True, fast=True)
    with pytest.raises(UnsupportedModelError, match="down_proj"):
        load(tmp_path / "saved")


def test_quantising_twice_is_a_usage_error(stored: Path) -> None:
    assert stored_quantization(AutoConfig.from_pretrained(stored)) == "bnb-4bit"
    with pytest.raises(UsageError, match=r"quantised already \(bnb-4bit\)"):
        load(stored, quantization="bnb-8bit")
    assert load(stored, quantization="bnb-4bit").spec.quantization == "bnb-4bit"


@pytest.mark.parametrize(
    ("quantization", "device", "from_gguf", "reason"),
    [
        ("bnb-8bit", CPU, False, "CUDA only"),
        ("bnb-8bit", MPS, False, "CUDA only"),
        ("bnb-4bit", MPS, False, "does not run on mps"),
        ("bnb-4bit", CPU, True, "GGUF"),
    ],
)
def test_what_cannot_work_is_said_before_loading(
    quantization: Any, device: torch.device, from_gguf: bool, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        check_quantization(ModelSpec(model="m", quantization=quantization), device, stored=None, from_gguf=from_gguf)


def test_a_missing_bitsandbytes_is_said_with_the_remedy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *_, **__: pytest.fail("weights were read"))
    with pytest.raises(UsageError, match=r"pip install 'bitsandbytes>=0\.50'"):
        load(folder, quantization="bnb-4bit")


def test_other_quantisations_are_left_to_transformers() -> None:
    config = tiny_config("llama")
    config.quantization_config = {"quant_method": "gptq", "bits": 4}
    how = quantized_loading(ModelSpec(model="m"), config, None, device=CUDA, dtype=torch.float16)
    assert (how.config, how.quantization_config, how.name) == (config, None, "gptq")


def test_settings_for_cuda() -> None:
    spec = ModelSpec(model="m", quantization="bnb-4bit")
    how = quantized_loading(spec, tiny_config("llama"), None, device=CUDA, dtype=torch.bfloat16)
    assert how.quantization_config is not None
    assert how.quantization_config.bnb_4bit_quant_type == "nf4"
    assert how.quantization_config.bnb_4bit_compute_dtype == torch.bfloat16
    assert how.notices == ()
    eight = quantized_loading(
        spec.model_copy(update={"quantization": "bnb-8bit"}),
        tiny_config("llama"),
        None,
        device=CUDA,
        dtype=torch.float16,
    )
    assert eight.quantization_config is not None
    assert eight.quantization_config.load_in_8bit
