from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.support.saved_models import save_config
from tests.support.tiny_models import tiny_config

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.command_line import CommandLine


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"question {n} abc abc"}) for n in range(5)))
    return path


SHORT = ("--output-lengths", "4", "--context-lengths", "")


def test_the_plan_is_compared_with_plain_decoding_and_transformers(
    selfspec_command: CommandLine, tiny_folder: Path, prompts: Path
) -> None:
    options = ("--draft", "ngram", "-p", prompts, *SHORT, "--format", "json")
    run = selfspec_command("bench", "-m", tiny_folder, *options)
    assert run.code == 0, run.err
    sheet = json.loads(run.out)["bench"]
    arms = [row["arm"] for row in sheet["rows"]]
    assert arms[:3] == ["plain", "plan: n-gram 1-3, 4 drafts", "transformers"]
    assert "transformers, prompt lookup" in arms
    assert "transformers, exit at 2" in arms
    for row in sheet["rows"][:3]:
        assert row["num_prompts"] == 5
        assert row["tokens_per_s"] > 0
    assert sheet["rows"][1]["speedup"]["low"] is not None
    assert any("torch" in note for note in sheet["notes"])
    assert "output 4: prompt 5 of 5" in run.err


def test_the_comparison_can_be_narrowed(selfspec_command: CommandLine, tiny_folder: Path, prompts: Path) -> None:
    arguments = ("bench", "-m", tiny_folder, "-p", prompts, *SHORT, "--format", "json", "-q", "--limit", "2")
    run = selfspec_command(*arguments, "--against", "transformers")
    rows = json.loads(run.out)["bench"]["rows"]
    assert [row["arm"] for row in rows] == ["plain", "transformers"]
    assert rows[1]["speedup"]["low"] is None, "two prompts give no interval"


def test_an_assistant_is_loaded(selfspec_command: CommandLine, tiny_folder: Path, prompts: Path) -> None:
    arguments = ("bench", "-m", tiny_folder, "-p", prompts, *SHORT, "--format", "json", "-q", "--limit", "2")
    run = selfspec_command(*arguments, "--against", "assistant", "--assistant-model", tiny_folder)
    assert run.code == 0, run.err
    assert [row["arm"] for row in json.loads(run.out)["bench"]["rows"]] == ["plain", "transformers, assistant"]


def test_without_prompts_the_demos_are_taken(selfspec_command: CommandLine, tiny_folder: Path) -> None:
    run = selfspec_command(
        "bench", "-m", tiny_folder, "--limit", "1", "--output-lengths", "2", "--context-lengths", "40", "--against",
        "plan", "--draft", "ngram", "--format", "md", "-q",
    )  # fmt: skip
    assert run.code == 0, run.err
    assert "| output | 2 | plain |" in run.out
    assert "| context | 40 | plan: n-gram 1-3, 4 drafts |" in run.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output-lengths", "a"], "--output-lengths is 'a'. Write whole numbers"),
        (["--output-lengths", "²"], "--output-lengths is '²'. Write whole numbers"),
        (["--output-lengths", "1"], "from 2 on"),
        (["--output-lengths", "", "--context-lengths", ""], "There is nothing to measure"),
        (["--max-new-tokens", "5"], "Use --output-lengths"),
        (["--against", "magic"], "--against knows plan, transformers, prompt-lookup, early-exit, assistant"),
        (["--against", "assistant"], "--against assistant needs --assistant-model"),
        (["--output-lengths", "9999"], "No prompt leaves room for 9999 new tokens in the model's context of 512"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    selfspec_command: CommandLine, tiny_folder: Path, prompts: Path, arguments: list[str], message: str
) -> None:
    run = selfspec_command("bench", "-m", tiny_folder, "-p", prompts, *arguments)
    assert (run.code, run.out) == (2, "")
    assert message in run.err


def test_a_synthetic_acceptance_is_labelled_everywhere(
    selfspec_command: CommandLine, tiny_folder: Path, prompts: Path
) -> None:
    options = ("--draft", "early-exit", "--exit-layer", "1", "-p", prompts, "--output-lengths", "12", "--limit", "2")
    arguments = ("bench", "-m", tiny_folder, *options, "--context-lengths", "", "--synthetic-acceptance", "1")
    run = selfspec_command(*arguments, "--format", "json")
    assert run.code == 0, run.err
    sheet = json.loads(run.out)["bench"]
    label = "synthetic acceptance: the text is not the model's"
    assert [row["arm"] for row in sheet["rows"]] == ["plain", "plan: exit after layer 1, 4 drafts", "transformers"]
    assert all(row["labels"] == [label] and row["synthetic_acceptance"] == 1.0 for row in sheet["rows"])
    assert label in sheet["title"]
    assert sheet["notes"][0] == "Synthetic acceptance: the text is not the model's."
    assert all(label in line for line in run.err.splitlines() if "prompt 1 of 2" in line)
    assert sheet["rows"][1]["acceptance_rate"] == 1.0
    assert "| synthetic acceptance |" in selfspec_command(*arguments, "--format", "md", "-q").out


def test_a_configuration_alone_can_be_costed(selfspec_command: CommandLine, prompts: Path, tmp_path: Path) -> None:
    folder = save_config(tmp_path / "shape", tiny_config("llama"))
    run = selfspec_command(
        "bench", "-m", folder, "--random-weights", "--dtype", "float32", "-p", prompts, *SHORT, "--limit", "2",
        "--draft", "quantized", "--synthetic-acceptance", "0.9", "--format", "json",
    )  # fmt: skip
    assert run.code == 0, run.err
    rows = json.loads(run.out)["bench"]["rows"]
    assert [row["arm"].split(":")[0] for row in rows] == ["plain", "plan", "transformers"]
    assert all(row["tokens_per_s"] > 0 and len(row["labels"]) == 2 for row in rows)
    assert "The weights are random" in run.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--synthetic-acceptance", "2"], "it is a probability"),
        (["--synthetic-acceptance", "0.9", "--temperature", "1"], "greedy decoding only"),
        (["--synthetic-acceptance", "0.9", "--against", "prompt-lookup"], "--against knows plan, transformers, not"),
        (["--random-weights", "--load-in-4bit"], "Random weights go without --quantization"),
    ],
)
def test_what_cannot_be_made_up_is_refused(
    selfspec_command: CommandLine, tiny_folder: Path, prompts: Path, arguments: list[str], message: str
) -> None:
    run = selfspec_command("bench", "-m", tiny_folder, "-p", prompts, *SHORT, *arguments)
    assert (run.code, run.out) == (2, "")
    assert message in run.err


@pytest.mark.parametrize("command", ["chat", "generate"])
def test_only_bench_makes_acceptance_up(selfspec_command: CommandLine, tiny_folder: Path, command: str) -> None:
    run = selfspec_command(command, "hello", "-m", tiny_folder, "--synthetic-acceptance", "0.9")
    assert run.code == 2
    assert "No such option" in run.err
