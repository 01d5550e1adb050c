from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

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
