from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

import pytest
from tests.support.calibrations import calibration, memory_step
from tests.support.html_checks import assert_harmless, shown_text

from selfspec.cli.__main__ import main
from selfspec_runtime.calibration_store import save_calibration
from selfspec_runtime.token_trace import TokenTrace

if TYPE_CHECKING:
    from pathlib import Path

    from selfspec import SpeculativeModel


def inspect(folder: Path, *more: str) -> int:
    plan = ("--draft", "early-exit", "--exit-layer", "2", "-k", "3", "--temperature", "0", "--max-new-tokens", "12")
    return main(["inspect", "--model", str(folder), *plan, *more])


def test_the_terminal_view_has_the_text_and_a_legend(tiny_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect(tiny_folder, "--prompt", "abc") == 0
    captured = capsys.readouterr()
    assert "exit after layer 2, 3 drafts" in captured.out
    assert "Settled after layer" in captured.out
    assert "\x1b" not in captured.out, "a pipe gets no colours"
    assert "early" not in captured.out


def test_a_page_goes_into_a_file_and_its_name_to_stdout(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "trace.html"
    assert inspect(tiny_folder, "--prompt", "abc", "-o", str(out)) == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert_harmless(out.read_text())
    assert "All 12 tokens as a table" in shown_text(out.read_text())


def test_arrays_go_into_two_files(tiny_folder: Path, tmp_path: Path) -> None:
    assert inspect(tiny_folder, "--prompt", "abc", "-o", str(tmp_path / "t.json"), "--num-candidates", "5") == 0
    assert TokenTrace.load(tmp_path / "t.safetensors").top_ids.shape == (4, 12, 5)


def test_the_prompt_may_come_from_a_pipe(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("abc"))
    assert inspect(tiny_folder, "-o", str(tmp_path / "piped.json")) == 0
    assert inspect(tiny_folder, "--prompt", "abc", "-o", str(tmp_path / "given.json")) == 0
    piped, given = (TokenTrace.load(tmp_path / f"{name}.json") for name in ("piped", "given"))
    assert piped.prompt_ids == given.prompt_ids
    assert piped.text == given.text


def test_another_ending_is_refused_before_the_model_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--model", "nowhere", "--prompt", "x", "-o", str(tmp_path / "t.png")]) == 2
    assert "Choose one of these endings" in capsys.readouterr().err


def test_the_facade_traces_what_it_generates(ngram_model: SpeculativeModel) -> None:
    trace = ngram_model.trace("abc abc", max_new_tokens=16, num_candidates=2)
    result = ngram_model.generate("abc abc", max_new_tokens=16)
    assert trace.text == result.text
    assert trace.stats() == result.stats
    assert trace.top_ids.shape[2] == 2


def test_a_report_is_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_calibration(tmp_path / "best.json", calibration(memory_step()), {})
    assert main(["report", str(tmp_path / "best.json"), "-o", str(tmp_path / "r.html")]) == 0
    assert_harmless((tmp_path / "r.html").read_text())
    captured = capsys.readouterr()
    assert captured.out == f"{tmp_path / 'r.html'}\n"
    assert "1.25x (1.10 to 1.45) as fast" in captured.err


def test_a_report_of_something_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_text("{}")
    assert main(["report", str(tmp_path / "x.json"), "-o", str(tmp_path / "r.html")]) == 2
    assert "not a calibration file" in capsys.readouterr().err
    assert not (tmp_path / "r.html").exists()
