"""A plan is not measured on the prompts that it was chosen on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.support.calibrations import calibration
from tests.support.tiny_tokenizer import tiny_tokenizer

from selfspec.cli.bench_prompts import unsearched
from selfspec_calibrate import stock_model
from selfspec_calibrate.measurement import MeasuredPrompt
from selfspec_calibrate.prompt_set import load_prompt_set
from selfspec_calibrate.prompts.reader import read_prompts
from selfspec_calibrate.settings import CalibrationSettings
from selfspec_runtime.calibration import PromptData
from selfspec_runtime.calibration_store import save_calibration
from selfspec_runtime.fingerprint import fingerprint
from selfspec_runtime.loading import load_model
from selfspec_runtime.model_spec import ModelSpec

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.command_line import CommandLine

SHORT = ("--output-lengths", "4", "--context-lengths", "", "--format", "json", "--against", "plan", "--limit", "9")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"question {n} abc abc"}) for n in range(6)))
    return path


def searched_data(path: Path) -> PromptData:
    """What a calibration with these prompts records."""
    settings = CalibrationSettings(model=ModelSpec(model="m"), prompts=path, limit=5)
    return load_prompt_set(settings, tiny_tokenizer(), max_positions=None, reserve=0).record()


def calibrated(folder: Path, path: Path, data: PromptData) -> Path:
    loaded = load_model(ModelSpec(model=str(folder)))
    save_calibration(path, calibration(model=loaded.spec, fingerprint=fingerprint(loaded), data=data), {})
    return path


def test_prompts_that_were_searched_on_are_left_out(
    selfspec_command: CommandLine, tiny_folder: Path, prompts: Path, tmp_path: Path
) -> None:
    data = searched_data(prompts)
    assert len(data.search_ids) == data.num_search == 3
    file = calibrated(tiny_folder, tmp_path / "best.json", data)
    run = selfspec_command("bench", "--calib", file, "-p", prompts, *SHORT)
    assert run.code == 0, run.err
    sheet = json.loads(run.out)["bench"]
    assert [row["num_prompts"] for row in sheet["rows"]] == [3, 3]
    said = "3 of 6 prompts, on which the plan was chosen, are left out."
    assert said in sheet["notes"]
    assert said in run.err


def test_what_is_left_is_what_the_search_never_saw(prompts: Path) -> None:
    file, data = read_prompts(prompts), searched_data(prompts)
    pool = tuple(MeasuredPrompt(each.id, each.kind, (1, 2)) for each in file.prompts)
    found = unsearched(pool, file, data)
    assert {each.prompt_id for each in found.measured} == {each.id for each in file.prompts} - set(data.search_ids)
    assert found.pool == pool, "long contexts may be made of all prompts"


def test_where_nothing_new_is_left_all_are_taken_and_it_is_said(prompts: Path) -> None:
    file, data = read_prompts(prompts), searched_data(prompts)
    pool = tuple(MeasuredPrompt(each, "chat", (1, 2)) for each in data.search_ids)
    found = unsearched(pool, file, data)
    assert found.measured == pool
    assert found.notices == ("The plan was chosen on all of these prompts: expect less of it on others.",)


def test_an_older_calibration_knows_the_file_and_not_which_prompts(prompts: Path) -> None:
    file, data = read_prompts(prompts), searched_data(prompts).model_copy(update={"search_ids": ()})
    pool = tuple(MeasuredPrompt(each.id, each.kind, (1, 2)) for each in file.prompts)
    found = unsearched(pool, file, data)
    assert found.measured == pool
    assert found.notices == ("The plan was chosen on a part of these prompts: expect less of it on others.",)
    other = unsearched(pool, file, data.model_copy(update={"sha256": "another"}))
    assert (other.measured, other.notices) == (pool, ())


def test_it_is_said_where_transformers_is_not_measured_as_it_is(
    selfspec_command: CommandLine, tiny_folder: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stock_model, "stock_model", lambda loaded: (loaded.model, ("No copy could be loaded",)))
    run = selfspec_command("bench", "-m", tiny_folder, "-p", prompts, *SHORT, "--against", "transformers")
    assert run.code == 0, run.err
    assert "No copy could be loaded." in run.err


def test_rows_that_are_left_out_are_told(selfspec_command: CommandLine, tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "odd.jsonl").write_text('{"frage": "abc"}\n{"frage": "abc"}\nnothing\n')
    arguments = ("bench", "-m", tiny_folder, "-p", "odd.jsonl", "--prompt-field", "frage", "--skip-bad-lines", *SHORT)
    run = selfspec_command(*arguments, "--draft", "ngram")
    assert run.code == 0, run.err
    assert json.loads(run.out)["bench"]["rows"][0]["num_prompts"] == 1
    assert "Left out: odd.jsonl:2: duplicate." in run.err
    assert "Left out: odd.jsonl:3: " in run.err
