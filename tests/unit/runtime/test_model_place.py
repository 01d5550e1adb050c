from __future__ import annotations

import json
from pathlib import Path

import pytest

from selfspec_runtime.errors import ModelError
from selfspec_runtime.model_place import find_model
from selfspec_runtime.model_spec import ModelSpec


def touch(path: Path, text: str = "{}") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def refusal(model: str | Path, **settings: str) -> str:
    with pytest.raises(ModelError) as caught:
        find_model(ModelSpec(model=str(model), **settings))
    return str(caught.value)


def test_a_model_folder_is_found_by_any_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path / "model" / "config.json")
    monkeypatch.chdir(tmp_path)
    for name in ("model", "./model", "model/", str(tmp_path / "model")):
        place = find_model(ModelSpec(model=name))
        assert place.folder == tmp_path / "model"
        assert place.name == str(tmp_path / "model")


def test_the_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    touch(tmp_path / "model" / "config.json")
    assert find_model(ModelSpec(model="~/model")).folder == tmp_path / "model"


def test_a_gguf_file_is_found_directly_and_inside_a_folder(tmp_path: Path) -> None:
    touch(tmp_path / "m.Q4_1.gguf")
    direct = find_model(ModelSpec(model=str(tmp_path / "m.Q4_1.gguf")))
    inside = find_model(ModelSpec(model=str(tmp_path), gguf_file="m.Q4_1.gguf"))
    assert direct == inside
    assert direct.gguf_file == "m.Q4_1.gguf"
    assert "m.Q4_1.gguf" in refusal(tmp_path, gguf_file="other.gguf")


def test_a_hub_id_is_left_to_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("gpt2", "org/Some-Model_1.5B"):
        place = find_model(ModelSpec(model=name))
        assert (place.name, place.folder) == (name, None)


@pytest.mark.parametrize("typo", ["my-finetun", "my-fine-tune", "My-Finetune", "my-finetune2"])
def test_a_typo_names_the_similar_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typo: str) -> None:
    touch(tmp_path / "my-finetune" / "config.json")
    touch(tmp_path / "unrelated" / "config.json")
    monkeypatch.chdir(tmp_path)
    for name in (typo, f"./{typo}", str(tmp_path / typo)):
        message = refusal(name)
        assert "Did you mean" in message
        assert "my-finetune" in message
        assert "unrelated" not in message


def test_a_path_that_is_nothing_like_a_hub_id_is_refused(tmp_path: Path) -> None:
    assert "nothing with a similar name" in refusal(tmp_path / "nothing-here")
    assert "does not exist either" in refusal(tmp_path / "no" / "such" / "folder")


def test_an_adapter_folder_names_its_base(tmp_path: Path) -> None:
    touch(tmp_path / "lora" / "adapter_config.json", json.dumps({"base_model_name_or_path": "org/base"}))
    message = refusal(tmp_path / "lora")
    assert "PEFT adapter" in message
    assert f"--model org/base --adapter-path {tmp_path / 'lora'}" in message


@pytest.mark.parametrize("content", ["not json", "[]", "{}", '{"base_model_name_or_path": null}'])
def test_an_adapter_folder_that_names_no_base_is_still_recognised(tmp_path: Path, content: str) -> None:
    touch(tmp_path / "adapter_config.json", content)
    assert "--model BASE_MODEL --adapter-path" in refusal(tmp_path)


def test_a_folder_with_a_model_and_an_adapter_is_not_guessed_about(tmp_path: Path) -> None:
    touch(tmp_path / "config.json")
    touch(tmp_path / "adapter_config.json")
    assert "a model and a PEFT adapter" in refusal(tmp_path)


def test_a_folder_without_a_config_says_what_is_there(tmp_path: Path) -> None:
    assert "The folder is empty" in refusal(tmp_path)
    touch(tmp_path / "trainer_state.json")
    assert "It holds trainer_state.json" in refusal(tmp_path)
    touch(tmp_path / "weights.gguf")
    assert str(tmp_path / "weights.gguf") in refusal(tmp_path)
    touch(tmp_path / "checkpoint-500" / "config.json")
    assert "These folders inside are models: checkpoint-500" in refusal(tmp_path)


def test_a_full_folder_is_listed_briefly(tmp_path: Path) -> None:
    for index in range(30):
        touch(tmp_path / f"file{index:02}")
    message = refusal(tmp_path)
    assert "file07" in message
    assert "file08" not in message
    assert "22 more" in message


def test_a_file_that_is_no_gguf_names_its_folder(tmp_path: Path) -> None:
    message = refusal(touch(tmp_path / "model.safetensors"))
    assert str(tmp_path) in message
    assert "config.json" in message
