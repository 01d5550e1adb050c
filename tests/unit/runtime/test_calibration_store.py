from __future__ import annotations

import errno
import json
import os
import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.support.calibrations import FINGERPRINT, LINEAR_EXIT, calibration, memory_step

from selfspec_runtime import calibration_store
from selfspec_runtime.calibration import Calibration
from selfspec_runtime.calibration_store import (
    calibration_json,
    calibration_schema,
    check_fingerprint,
    load_calibration,
    save_calibration,
)
from selfspec_runtime.errors import CalibrationFileError, SelfspecError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HEAD = "exit_head.2"


def linear() -> Calibration:
    return calibration(memory_step(LINEAR_EXIT))


def heads() -> dict[str, torch.Tensor]:
    return {HEAD: torch.arange(64.0 * 64).reshape(64, 64).to(torch.bfloat16).T}


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "best.json"
    written = save_calibration(path, linear(), heads())
    loaded = load_calibration(path)
    assert loaded.calibration == written
    assert loaded.path == path
    assert written.arrays == "best.safetensors"
    assert torch.equal(loaded.arrays[HEAD], heads()[HEAD])
    assert loaded.arrays[HEAD].dtype == torch.bfloat16


def test_without_arrays_there_is_one_file(tmp_path: Path) -> None:
    written = save_calibration(tmp_path / "best.json", calibration(), {})
    assert (written.arrays, written.arrays_sha256) == (None, None)
    assert [entry.name for entry in tmp_path.iterdir()] == ["best.json"]


def test_the_text_is_sorted_readable_and_stable(tmp_path: Path) -> None:
    content = calibration(data=calibration().data.model_copy(update={"file": "Übung.jsonl"}))
    text = calibration_json(content).decode()
    assert text == calibration_json(Calibration.model_validate(json.loads(text))).decode()
    assert "Übung" in text
    keys = [line.strip().split(":")[0] for line in text.splitlines() if line.startswith('  "')]
    assert keys == sorted(keys)


def test_a_byte_order_mark_and_fields_of_a_later_minor_version_are_accepted(tmp_path: Path) -> None:
    path = changed(tmp_path, lambda content: content.update(schema_version="1.7", novelty=[1]))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load_calibration(path).calibration.schema_version == "1.7"


def test_a_number_that_is_not_finite_is_not_written(tmp_path: Path) -> None:
    broken = calibration(memory_step(speedup=float("nan")))
    with pytest.raises(CalibrationFileError, match="not finite"):
        save_calibration(tmp_path / "best.json", broken, {})
    assert list(tmp_path.iterdir()) == []


def changed(folder: Path, change: Callable[[dict[str, Any]], object], content: Calibration | None = None) -> Path:
    """A saved calibration whose JSON is changed afterwards."""
    path = folder / "best.json"
    save_calibration(path, content or calibration(), heads() if content else {})
    fields = json.loads(path.read_text(encoding="utf-8"))
    change(fields)
    path.write_text(json.dumps(fields), encoding="utf-8")
    return path


def step_of(content: dict[str, Any]) -> dict[str, Any]:
    first: dict[str, Any] = content["steps"][0]
    return first


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(schema_version="2.0"), r"format 2\.0, and this selfspec reads 1\.x\. Install a newer"),
        (lambda c: c.update(schema_version="0.9"), r"old format 0\.9, .*Calibrate again"),
        (lambda c: c.update(schema_version=1), "schema_version is 1"),
        (lambda c: c.pop("schema_version"), "schema_version is None"),
        (lambda c: c.update(schema_name="other"), "not a calibration file of selfspec"),
        (lambda c: c.pop("fingerprint"), "best.json: fingerprint: Field required"),
        (lambda c: c.update(max_new_tokens="many"), r"max_new_tokens: .*integer.* \(it is 'many'\)"),
        (lambda c: c.update(chosen=1), "chosen is 1, and there are 1 steps"),
        (lambda c: c.update(chosen=-1), "chosen is -1"),
        (lambda c: c.update(steps=[]), "steps: "),
        (lambda c: step_of(c).update(plan={"source": {"kind": "early_exit", "exit_layer": 0}}), "exit_layer"),
        (lambda c: step_of(c).update(plan={"source": {"kind": "early_exit", "exit_layer": -1}}), "exit_layer"),
        (lambda c: step_of(c).update(plan={"source": {"kind": "early_exit", "exit_layer": 4}}), "Exit layer 4 does"),
        (lambda c: step_of(c).update(plan={"source": {"kind": "magic"}}), r"steps\.0\.plan\.source"),
        (
            lambda c: step_of(c).update(plan={"source": {"kind": "layer_skip", "skip": {"mlp": [9]}}}),
            r"sub-layers \[9\]",
        ),
    ],
)
def test_wrong_fields_are_named(tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str) -> None:
    path = changed(tmp_path, change)
    with pytest.raises(CalibrationFileError, match=message) as caught:
        load_calibration(path)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{\n "a": 1,\n "b"\n}', "best.json:4: expecting ':' delimiter"),
        (b"", "best.json:1: expecting value"),
        (b"[1, 2]", "not a calibration file"),
        (b'{"a": NaN}', "NaN is not a number that a calibration can hold"),
        (b'{"a": 1e999}', "1e999 is not a number that a calibration can hold"),
        (b'{"a": ' + b"9" * 400 + b"}", "99999999999999999999... is not a number that a calibration can hold"),
        (b"\xff\xfe{\x00}", "not UTF-8 text"),
        (b"[" * 100_000, "Restore the file"),
    ],
)
def test_broken_text_is_refused_with_its_line(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "best.json"
    path.write_bytes(data)
    with pytest.raises(CalibrationFileError, match=message):
        load_calibration(path)


def test_a_missing_file_names_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(CalibrationFileError, match=r"There is no calibration file .*selfspec calibrate"):
        load_calibration(tmp_path / "best.json")


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(CalibrationFileError, match="cannot be read: is a directory"):
        load_calibration(tmp_path)


def test_many_faults_are_cut_short(tmp_path: Path) -> None:
    def wreck(content: dict[str, Any]) -> None:
        for name in ("created", "model", "fingerprint", "machine", "data", "evidence", "steps"):
            content[name] = 0

    with pytest.raises(CalibrationFileError, match=r"and 2 more\."):
        load_calibration(changed(tmp_path, wreck))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(arrays=None), "uses the array exit_head.2, and it is not there"),
        (lambda c: c.update(arrays="../best.safetensors"), "not a .safetensors file beside it"),
        (lambda c: c.update(arrays="best.pt"), "not a .safetensors file beside it"),
        (lambda c: c.update(arrays="other.safetensors"), "belongs together with .*other.safetensors"),
        (lambda c: c.update(arrays_sha256="0"), "is not the file that best.json was written with"),
        (lambda c: c["fingerprint"].update(hidden_size=32), "is 64x64, the model's width is 32"),
    ],
)
def test_arrays_that_do_not_go_with_the_file_are_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    path = changed(tmp_path, change, linear())
    with pytest.raises(CalibrationFileError, match=message):
        load_calibration(path)


def test_arrays_are_never_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "best.json"
    save_calibration(path, linear(), heads())
    torch.save(heads(), tmp_path / "best.safetensors")
    with pytest.raises(CalibrationFileError, match="is not the file"):
        load_calibration(path)


def test_saving_without_a_needed_array_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CalibrationFileError, match=HEAD):
        save_calibration(tmp_path / "best.json", linear(), {})


def full_disk(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_no_disk_space_keeps_the_old_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "best.json"
    written = save_calibration(path, linear(), heads())
    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(SelfspecError, match=r"No space left on device\. .*Free some space"):
        save_calibration(path, linear().model_copy(update={"max_new_tokens": 9}), heads())
    monkeypatch.undo()
    assert load_calibration(path).calibration == written


def test_the_schema_names_every_field() -> None:
    assert set(calibration_schema()["properties"]) == set(Calibration.model_fields)


@pytest.mark.parametrize(
    ("changes", "force", "outcome"),
    [
        ({}, False, ()),
        ({"dtype": "bfloat16"}, False, ("another dtype",)),
        ({"weights_sha256": "x"}, True, ("other weights",)),
        ({"weights_sha256": "x"}, False, "--force"),
        ({"num_hidden_layers": 5}, True, "another number of layers"),
        ({"tokenizer_sha256": "x"}, True, "another tokenizer"),
    ],
)
def test_another_model_is_refused_or_warned_of(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], force: bool, outcome: tuple[str, ...] | str
) -> None:
    monkeypatch.setattr(calibration_store, "fingerprint", lambda loaded: FINGERPRINT.model_copy(update=changes))
    loaded: Any = None
    if isinstance(outcome, str):
        with pytest.raises(CalibrationFileError, match=outcome):
            check_fingerprint(calibration(), loaded, force=force)
        return
    notices = check_fingerprint(calibration(), loaded, force=force)
    assert len(notices) == len(outcome)
    assert all(part in notice for part, notice in zip(outcome, notices, strict=True))


@pytest.mark.parametrize(
    "source",
    [
        {"kind": "early_exit", "exit_layer": 2, "head": "linear", "rank": 4},
        {"kind": "quantized", "vocab_size": 9},
        {"kind": "suffix", "corpus": True},
        {"kind": "ngram_first", "ngram": {"kind": "suffix", "corpus": True}, "then": {"kind": "quantized"}},
        {"kind": "tree", "chain": {"kind": "layer_skip", "skip": {"mlp": [1]}, "vocab_size": 9}},
    ],
    ids=str,
)
def test_whatever_arrays_a_plan_needs_must_be_there(tmp_path: Path, source: dict[str, Any]) -> None:
    content = calibration(memory_step({"source": source}))
    names = content.steps[0].plan.source.array_names()  # type: ignore[union-attr]
    arrays = {name: torch.zeros(3, 2) for name in names}
    save_calibration(tmp_path / "a.json", content, arrays)
    assert set(load_calibration(tmp_path / "a.json").arrays) == set(names)
    del arrays[names[-1]]
    with pytest.raises(CalibrationFileError, match=f"uses the array {re.escape(names[-1])}, and it is not there"):
        save_calibration(tmp_path / "b.json", content, arrays)


def test_an_empty_cost_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "best.json"
    content = json.loads(calibration_store.calibration_json(calibration()))
    content["evidence"]["cost"].update(context_lengths=[], pass_s=[[]], attention_s=[])
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(CalibrationFileError, match=r"evidence\.cost\.pass_s\.0"):
        load_calibration(path)
