from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.support.calibrations import QUANTIZED, calibration, memory_step
from tests.support.saved_models import save_model

import selfspec
from selfspec_runtime.calibration_store import save_calibration
from selfspec_runtime.errors import ModelError
from selfspec_runtime.fingerprint import fingerprint
from selfspec_runtime.loading import load_model
from selfspec_runtime.model_spec import ModelSpec

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.command_line import CommandLine


@pytest.fixture
def best(tmp_path: Path, tiny_folder: Path) -> Path:
    """A calibration file of the tiny model with two steps of memory."""
    loaded = load_model(ModelSpec(model=str(tiny_folder)))
    steps = (memory_step(), memory_step(QUANTIZED, name="quantized", extra_bytes=270_000, speedup=1.9))
    path = tmp_path / "best.json"
    save_calibration(path, calibration(*steps, model=loaded.spec, fingerprint=fingerprint(loaded)), {})
    return path


def test_a_file_is_shown(selfspec_command: CommandLine, best: Path) -> None:
    run = selfspec_command("calib", "show", best)
    assert run.code == 0
    assert "n-gram 1-3, 4 drafts on Test CPU" in run.out
    assert "Next step up: NF4 copy of layers" in run.out
    content = json.loads(selfspec_command("calib", "show", best, "--format", "json").out)
    assert set(content) == {"verdict", "steps", "timed"}
    assert content["verdict"]["rows"][2]["speedup"]["value"] == 1.25
    assert "| all | 10 | 40.0 | 50.0 |" in selfspec_command("calib", "show", best, "--format", "md").out


def test_a_file_is_validated(selfspec_command: CommandLine, best: Path, tiny_folder: Path, tmp_path: Path) -> None:
    run = selfspec_command("calib", "validate", best)
    assert (run.code, run.err) == (0, "")
    assert "best.json is whole: n-gram 1-3, 4 drafts, enabled." in run.out
    same = selfspec_command("calib", "validate", best, "--model", tiny_folder)
    assert same.code == 0
    assert f"It is for {tiny_folder}." in same.out
    other = save_model(tmp_path / "other", num_hidden_layers=4, seed=5)
    refused = selfspec_command("calib", "validate", best, "-m", other)
    assert refused.code == 2
    assert "for other weights of the same architecture" in refused.err
    assert selfspec_command("calib", "validate", best, "-m", other, "--force").code == 0


def test_a_broken_file_is_refused(selfspec_command: CommandLine, best: Path) -> None:
    best.write_text(best.read_text()[:-5])
    for command in ("show", "validate"):
        run = selfspec_command("calib", command, best)
        assert run.code == 2
        assert "Error: " in run.err
        assert "best.json:" in run.err


def test_the_schema_is_printed(selfspec_command: CommandLine) -> None:
    schema = json.loads(selfspec_command("calib", "schema").out)
    assert {"steps", "fingerprint", "evidence"} <= set(schema["properties"])


def test_a_model_decodes_with_its_file(selfspec_command: CommandLine, best: Path) -> None:
    run = selfspec_command("generate", best, "-p", "abc", "--max-tokens", "4")
    assert run.code == 0
    assert "n-gram 1-3, 4 drafts" in run.err
    more = selfspec_command("generate", "--calib", best, "-p", "abc", "--max-tokens", "4", "--temperature", "0.5")
    assert "the plan was measured at greedy decoding" in more.err


def test_a_model_that_moved_is_asked_for(selfspec_command: CommandLine, tiny_folder: Path, tmp_path: Path) -> None:
    loaded = load_model(ModelSpec(model=str(tiny_folder)))
    gone = loaded.spec.model_copy(update={"model": str(tmp_path / "gone" / "m")})
    path = tmp_path / "moved.json"
    save_calibration(path, calibration(memory_step(), model=gone, fingerprint=fingerprint(loaded)), {})
    run = selfspec_command("generate", path, "-p", "abc")
    assert run.code == 1
    assert f"moved.json records that its model lies in {tmp_path / 'gone' / 'm'}, and nothing is there." in run.err
    assert "--model" in run.err
    assert selfspec_command("generate", path, "-p", "abc", "-m", tiny_folder, "--max-tokens", "2").code == 0
    with pytest.raises(ModelError, match="records that its model lies in"):
        selfspec.load(path)


def test_a_file_of_another_model_is_refused_by_every_command(
    selfspec_command: CommandLine, best: Path, tmp_path: Path
) -> None:
    other = save_model(tmp_path / "other", num_hidden_layers=4, seed=5)
    for command in (["generate", "-p", "a"], ["chat"], ["bench"]):
        run = selfspec_command(command[0], best, "-m", other, *command[1:])
        assert run.code == 2
        assert "for other weights of the same architecture" in run.err
