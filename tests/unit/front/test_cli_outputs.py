from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.calibrations import calibration, memory_step

from selfspec.cli.outputs import model_files, refuse_overlap
from selfspec_runtime.calibration_store import save_calibration
from selfspec_runtime.errors import UsageError

if TYPE_CHECKING:
    from tests.support.command_line import CommandLine


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one of each file that a command may read."""
    save_calibration(tmp_path / "best.json", calibration(memory_step()), {})
    for name in ("p.jsonl", "own.yaml", "chat.jinja", "system.txt"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "model.safetensors").write_text("weights")
    (tmp_path / "link.json").symlink_to(tmp_path / "p.jsonl")
    return tmp_path


READ = ("-m", "model", "-p", "p.jsonl")


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "best.json", "-o", "best.json"),
        ("report", "best.json", "-o", "./model/../best.json"),
        ("report", "best.json", "-o", "best.safetensors"),
        ("calibrate", *READ, "-o", "p.jsonl"),
        ("calibrate", *READ, "-o", "p.jsonl", "--dry-run"),
        ("calibrate", *READ, "-o", "link.json"),
        ("calibrate", *READ, "-C", "own.yaml", "-o", "own.yaml"),
        ("calibrate", *READ, "--system", "@system.txt", "-o", "system.txt"),
        ("calibrate", *READ, "-o", "model/config.json"),
        ("calibrate", *READ, "-o", "model/model.json"),
        ("calibrate", *READ, "-o", "best.safetensors"),
        ("compare", *READ, "-o", "p.jsonl"),
        ("compare", *READ, "-o", "x", "--markdown", "x"),
        ("compare", *READ, "--markdown", "compare.json"),
        ("compare", *READ, "--chat-template", "chat.jinja", "--markdown", "chat.jinja"),
        ("compare", "-m", "model", "--spec-bench", "p.jsonl", "-o", "p.jsonl"),
        ("inspect", "best.json", "-p", "x", "-o", "best.json"),
        ("inspect", "-m", "model", "-p", "x", "-o", "model/config.safetensors"),
    ],
)
def test_nothing_is_written_over_what_a_command_reads_or_writes_besides(
    selfspec_command: CommandLine, folder: Path, arguments: tuple[str, ...]
) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    run = selfspec_command(*arguments)
    assert (run.code, run.out) == (2, "")
    assert "as well. Choose another place." in run.err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_calibration_may_lie_in_the_model_folder_and_be_made_anew(folder: Path) -> None:
    for name in ("selfspec.json", "selfspec.safetensors", "best.json"):
        (folder / "model" / name).write_text("{}")
        refuse_overlap({"--output": folder / "model" / name}, model_files(str(folder / "model")))


def test_a_model_that_is_one_file_or_elsewhere_has_no_other_files(folder: Path) -> None:
    (folder / "a.gguf").touch()
    assert list(model_files(str(folder / "a.gguf")).values()) == [folder / "a.gguf"]
    assert model_files("someone/model") == model_files(None) == {}


def test_two_results_may_go_to_one_device() -> None:
    refuse_overlap({"--output": Path(os.devnull), "--markdown": Path(os.devnull)}, {})
    with pytest.raises(UsageError, match="would be written as --markdown, and is --output as well"):
        refuse_overlap({"--output": Path("x"), "--markdown": Path("./x")}, {})


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
def test_a_calibration_is_not_written_to_a_fifo(selfspec_command: CommandLine, folder: Path) -> None:
    os.mkfifo(folder / "ff")
    for command in ("calibrate", "compare"):
        run = selfspec_command(command, *READ, "-o", "ff")
        assert (run.code, "ff is a device or a pipe" in run.err) == (2, True)
    assert (folder / "ff").is_fifo()
