from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.saved_models import save_config
from tests.support.tiny_models import tiny_config

import selfspec
from selfspec_runtime.decoder import Decoder
from selfspec_runtime.drafts.early_exit import EarlyExitSpec

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.command_line import CommandLine


def test_text_goes_to_stdout_and_speed_to_stderr(selfspec_command: CommandLine, tiny_folder: Path) -> None:
    run = selfspec_command(
        "generate", "-m", tiny_folder, "--prompt", "abc", "--max_new_tokens", "12", "--draft", "ngram"
    )
    expected = selfspec.load(tiny_folder).generate("abc", max_new_tokens=12)
    assert (run.code, run.out) == (0, expected.text + "\n")
    assert f"{tiny_folder}: n-gram 1-3, 4 drafts" in run.err
    assert "tok/s" in run.err
    assert "ended by length" in run.err


def test_json_holds_tokens_counts_and_seconds(selfspec_command: CommandLine, tiny_folder: Path) -> None:
    arguments = ("--max-tokens", "12", "--exit-layer", "3", "-k", "2", "--json", "-q")
    run = selfspec_command("generate", "-m", tiny_folder, "-p", "abc", *arguments)
    assert run.err == ""
    content = json.loads(run.out)
    assert set(content) >= {"text", "token_ids", "finish_reason", "stats", "seconds", "notices", "plan"}
    stats = content["stats"]
    assert stats["num_emitted_tokens"] == len(content["token_ids"]) - 1
    assert stats["num_draft_tokens"] <= 2 * stats["num_drafts"]
    assert sum(stats["num_accepted_tokens_per_pos"]) == stats["num_accepted_tokens"]
    assert set(content["seconds"]) == {"prefill", "draft", "verify", "host"}
    assert EarlyExitSpec.model_validate(content["plan"]["source"]) == EarlyExitSpec(exit_layer=3)


@pytest.mark.parametrize("arguments", [[], ["--prompt", "-"]])
def test_a_prompt_comes_from_stdin(selfspec_command: CommandLine, tiny_folder: Path, arguments: list[str]) -> None:
    options = ("generate", "-m", tiny_folder, "--max-tokens", "5", "-q")
    piped = selfspec_command(*options, *arguments, stdin="abc")
    assert piped.out == selfspec_command(*options, "-p", "abc").out


def test_a_prompt_comes_from_a_file(selfspec_command: CommandLine, tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("abc")
    options = ("generate", "-m", tiny_folder, "--max-tokens", "5", "-q")
    assert selfspec_command(*options, "-f", "one.txt").out == selfspec_command(*options, "-p", "abc").out


def test_a_file_of_prompts_gives_one_document_each(
    selfspec_command: CommandLine, tiny_folder: Path, tmp_path: Path
) -> None:
    rows = [{"messages": [{"role": "user", "content": "abc"}]}, {"text": "once upon"}]
    (tmp_path / "many.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    run = selfspec_command("generate", "-m", tiny_folder, "--max-tokens", "5", "--json", "-f", "many.jsonl", "-q")
    model = selfspec.load(tiny_folder)
    expected = [model.generate("abc", max_new_tokens=5), model.generate("once upon", max_new_tokens=5, raw=True)]
    assert [json.loads(line)["token_ids"] for line in run.out.splitlines()] == [list(r.token_ids) for r in expected]


def test_every_row_of_a_file_is_answered_or_named(
    selfspec_command: CommandLine, tiny_folder: Path, tmp_path: Path
) -> None:
    image = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}
    rows = ({"text": "abc"}, image, {"text": "abc"}, {"text": " "}, {"text": "b"})
    (tmp_path / "many.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n{")
    options = ("generate", "-m", tiny_folder, "--max-tokens", "2", "--json", "-f", "many.jsonl")
    refused = selfspec_command(*options)
    assert (refused.code, "many.jsonl:6: " in refused.err, "--skip-bad-lines" in refused.err) == (2, True, True)
    run = selfspec_command(*options, "--skip-bad-lines")
    assert run.code == 0
    assert [json.loads(line)["line"] for line in run.out.splitlines()] == [1, 3, 5]
    for told in ("many.jsonl:2: image or audio.", "many.jsonl:4: empty prompt.", "Left out: many.jsonl:6: "):
        assert told in run.err


def test_the_field_of_the_prompt_can_be_named(selfspec_command: CommandLine, tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "odd.jsonl").write_text('{"frage": "abc"}\n')
    options = ("generate", "-m", tiny_folder, "--max-tokens", "3", "-q")
    refused = selfspec_command(*options, "-f", "odd.jsonl")
    assert (refused.code, "--prompt-field" in refused.err) == (2, True)
    run = selfspec_command(*options, "-f", "odd.jsonl", "--prompt-field", "frage")
    assert run.out == selfspec_command(*options, "-p", "abc").out
    aside = selfspec_command(*options, "-p", "abc", "--prompt-field", "frage")
    assert (aside.code, "--prompt-field is about rows" in aside.err) == (2, True)


def test_a_prompt_of_a_file_that_is_too_long_is_named_after_those_before_it(
    selfspec_command: CommandLine, tiny_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "many.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in ("abc", "a b " * 2000)))
    run = selfspec_command("generate", "-m", tiny_folder, "--max-tokens", "5", "--json", "-f", "many.jsonl", "-q")
    assert len(run.out.splitlines()) == 1
    assert run.code == 1
    assert "many.jsonl:2: The prompt has" in " ".join(run.err.split())


def test_the_prompt_is_taken_raw_or_with_a_system_message(selfspec_command: CommandLine, tiny_folder: Path) -> None:
    options = ("generate", "-m", tiny_folder, "--max-tokens", "3", "-q", "--json", "-p", "abc")
    raw = json.loads(selfspec_command(*options, "--no-chat-template").out)
    told = json.loads(selfspec_command(*options, "--system", "be brief").out)
    assert raw["num_prompt_tokens"] < told["num_prompt_tokens"]


def test_a_models_markup_is_written_as_it_is(
    selfspec_command: CommandLine, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = iter(["[/INST] ", "[red]", "x[/red] \\[b] :smile:"])

    def push(self: Any, ids: list[int]) -> str:
        return next(pieces, "")

    monkeypatch.setattr("selfspec_runtime.detokenizer.Detokenizer.push", push)
    monkeypatch.setattr("selfspec_runtime.detokenizer.Detokenizer.finish", lambda self: "")
    run = selfspec_command("generate", "-m", tiny_folder, "-p", "abc", "--max-tokens", "3", "-q")
    assert run.out == "[/INST] [red]x[/red] \\[b] :smile:\n"


def test_an_interrupt_ends_with_130_and_keeps_what_was_written(
    selfspec_command: CommandLine, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Decoder, "_round", interrupted)
    run = selfspec_command("generate", "-m", tiny_folder, "-p", "abc", "-q")
    assert run.code == 130
    assert len(run.out) >= 1
    assert "Traceback" not in run.err


def test_the_environment_names_the_model(
    selfspec_command: CommandLine, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SELFSPEC_MODEL", str(tiny_folder))
    assert selfspec_command("generate", "-p", "abc", "--max-tokens", "2", "-q").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["-m", "{tiny}x", "-p", "a"], 1, "There is no model at '{tiny}x'. Did you mean {tiny}?"),
        (["-m", "{adapter}", "-p", "a"], 1, "is a PEFT adapter, not a whole model. Pass its base model"),
        (["-m", "{hybrid}", "-p", "a"], 1, "cannot decode models of the family 'jamba': its recurrent state"),
        (["-p", "a"], 2, "No model is named"),
        (["-m", "{tiny}"], 2, "The prompt is empty"),
        (["-m", "{tiny}", "-p", "a", "-f", "b"], 2, "--prompt and --file are both given"),
        (["-m", "{tiny}", "-f", "nowhere.txt"], 2, "--file: nowhere.txt cannot be read"),
        (["-m", "{tiny}", "-f", "{broken}"], 2, "broken.jsonl:2: "),
        (["-m", "{tiny}", "-f", "{empty}"], 2, "empty.jsonl"),
        (["-m", "{tiny}", "-p", "a", "--exit-layer", "4"], 2, "Exit layer 4 does not exist: the model has 4 layers"),
        (["-m", "{tiny}", "-p", "a", "--exit-layer", "0"], 2, "--exit-layer cannot be 0"),
        (["-m", "{tiny}", "-p", "a", "--exit-layer", "2", "--head", "linear"], 2, "The linear head of exit layer 2"),
        (["-m", "{tiny}", "-p", "a", "--skip-mlp", "9"], 2, "names mlp sub-layers [9]"),
        (["-m", "{tiny}", "-p", "a", "--skip-mlp", ","], 2, "--skip-mlp is ',', which names no layer"),
        (["-m", "{tiny}", "-p", "a", "--top-p", "7"], 2, "top_p is 7.0"),
        (["-m", "{tiny}", "-p", "a", "--max-tokens", "0"], 2, "max_new_tokens is 0"),
        (["-m", "{tiny}", "-p", "a", "--device", "cuda:7"], 2, "cuda:7"),
        (
            ["-m", "{tiny}", "-p", "a", "--max-extra-memory", "1GB"],
            2,
            "--max-extra-memory chooses within a calibration",
        ),
        (["-m", "{tiny}", "-p", "a", "--force"], 2, "--force chooses within a calibration file"),
        (["none.json", "-p", "a"], 2, "There is no calibration file none.json"),
        (["{broken}", "-p", "a"], 2, "broken.jsonl:2: extra data"),
        (["{missing}", "-p", "a"], 2, "missing.json: created: Field required"),
    ],
)
def test_whatever_is_wrong_is_said_in_a_sentence(
    selfspec_command: CommandLine, tiny_folder: Path, tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "base", "peft_type": "LORA"}')
    (tmp_path / "broken.jsonl").write_text('{"prompt": "a"}\n{"prompt": \n')
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "missing.json").write_text('{"schema_name": "selfspec.calibration", "schema_version": "1.0"}')
    names = {
        "tiny": tiny_folder,
        "adapter": adapter,
        "hybrid": save_config(tmp_path / "hybrid", tiny_config("jamba")),
        "broken": tmp_path / "broken.jsonl",
        "empty": tmp_path / "empty.jsonl",
        "missing": tmp_path / "missing.json",
    }
    run = selfspec_command("generate", *(argument.format(**names) for argument in arguments))
    assert run.code == code, run.err
    assert message.format(**names) in run.err
    assert run.err.count("Error: ") == 1
    assert "Traceback" not in run.err
    assert run.out == ""
