from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from selfspec.cli.options import ModelOptions, SamplingOptions, TemplateOptions, TextOptions
from selfspec.request import make_options
from selfspec_runtime.errors import UsageError
from selfspec_runtime.model_spec import ModelSpec

if TYPE_CHECKING:
    from pathlib import Path


def test_only_what_was_said_is_given() -> None:
    assert ModelOptions().given() == {}
    assert SamplingOptions().given() == {}
    assert TemplateOptions().given() == {}
    options = ModelOptions(model="m", load_in_4bit=True, trust_remote_code=False)
    assert options.given() == {"model": "m", "quantization": "bnb-4bit", "trust_remote_code": False}


def test_every_given_option_is_one_that_generate_knows() -> None:
    sampling = SamplingOptions(temperature=0.5, top_p=0.9, top_k=3, min_p=0.1, seed=2, max_new_tokens=7)
    text = TextOptions(mode="match", stop=["a", "b"])
    options = make_options(**sampling.given(), **text.given(), **TemplateOptions(system="s").given())
    assert (options.max_new_tokens, options.stop, options.system) == (7, ("a", "b"), "s")
    assert (options.sampling.temperature, options.sampling.mode) == (0.5, "match")


def test_the_command_line_goes_before_the_file() -> None:
    stored = ModelSpec(model="a", revision="r", dtype="bfloat16", gguf_file="x.gguf", adapter_path="lora")
    assert ModelOptions().over(stored) == stored
    assert ModelOptions(dtype="float32").over(stored).dtype == "float32"
    moved = ModelOptions(model="b").over(stored)
    assert (moved.model, moved.revision, moved.gguf_file) == ("b", None, None)
    assert (moved.dtype, moved.adapter_path) == ("bfloat16", "lora")


def test_a_model_must_be_named_somewhere() -> None:
    with pytest.raises(UsageError, match=r"No model is named\. Pass a calibration file, or --model"):
        ModelOptions().over(None)


@pytest.mark.parametrize(
    "options",
    [{"load_in_4bit": True, "load_in_8bit": True}, {"load_in_8bit": True, "quantization": "bnb-4bit"}],
)
def test_two_quantisations_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"--quantization cannot be .* at once"):
        ModelOptions(**options).given()


def test_the_same_quantisation_twice_is_one() -> None:
    assert ModelOptions(load_in_4bit=True, quantization="bnb-4bit").given() == {"quantization": "bnb-4bit"}


def test_system_and_template_come_from_files(tmp_path: Path) -> None:
    (tmp_path / "system.txt").write_text("be brief\n", encoding="utf-8-sig")
    (tmp_path / "chat.jinja").write_text("{{ x }}")
    options = TemplateOptions(
        system=f"@{tmp_path / 'system.txt'}",
        chat_template=tmp_path / "chat.jinja",
        chat_template_kwargs='{"enable_thinking": false}',
    )
    assert options.given() == {
        "system": "be brief",
        "template_kwargs": {"enable_thinking": False, "chat_template": "{{ x }}"},
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"system": "@nowhere.txt"}, "--system: nowhere.txt cannot be read"),
        ({"chat_template_kwargs": "{"}, "Write a JSON object"),
        ({"chat_template_kwargs": "[1]"}, "Write a JSON object"),
    ],
)
def test_what_cannot_be_read_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TemplateOptions(**options).given()
