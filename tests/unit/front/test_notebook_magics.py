from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("anywidget")

from IPython.core.interactiveshell import InteractiveShell
from tests.support.calibrations import calibration, memory_step
from tests.support.traces import made_up_trace

import selfspec
from selfspec.notebook.exit_depth_view import ExitDepthView
from selfspec.notebook.what_if import WhatIf
from selfspec_runtime.calibration_store import save_calibration
from selfspec_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def shell() -> Iterator[Any]:
    make: Any = InteractiveShell
    shell = make()
    shell.run_line_magic("load_ext", "selfspec")
    yield shell
    shell.run_line_magic("reset", "-f")
    InteractiveShell.clear_instance()


def test_a_cell_streams_and_then_shows_the_view(
    shell: Any, tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run_line_magic("selfspec", f"load {tiny_folder}")
    view = shell.run_cell_magic("selfspec", "--max-new-tokens 12 --temperature 0", "abc\n")
    assert isinstance(view, ExitDepthView)
    trace = shell.user_ns["trace"]
    assert trace.num_tokens == 12
    assert trace.text == selfspec.load(tiny_folder).generate("abc", max_new_tokens=12, temperature=0).text
    out = capsys.readouterr().out
    assert "plain decoding; the model is in the variable `model`." in out
    assert out.endswith(trace.text + "\n")


def test_an_interrupt_ends_the_text_and_keeps_it(
    shell: Any, tiny_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.run_line_magic("selfspec", f"load {tiny_folder}")
    model, steps = shell.user_ns["model"], []
    traced = model.trace

    def press_ctrl_c_after_three(prompt: str, *, on_step: Any, **options: Any) -> Any:
        def count(step: Any) -> None:
            on_step(step)
            steps.append(step)
            if len(steps) == 3:
                os.kill(os.getpid(), signal.SIGINT)

        return traced(prompt, on_step=count, **options)

    monkeypatch.setattr(model, "trace", press_ctrl_c_after_three)
    shell.run_cell_magic("selfspec", "--max-new-tokens 200 --temperature 0", "abc")
    assert 3 <= shell.user_ns["trace"].num_tokens <= 5
    assert "(interrupted)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "cell", "said"),
    [
        ("", None, "Use one of these"),
        ("dance", None, "Use one of these"),
        ("load", None, "required: source"),
        ("load /nowhere/at/all.json", None, "There is no calibration file"),
        ("", "a prompt", "No model is open"),
        ("what-if", None, "No model is open"),
        ("what-if now", None, "Use one of these"),
        ("load 'unclosed", None, "No closing quotation"),
    ],
)
def test_what_is_wrong_is_said_without_a_traceback(
    shell: Any, line: str, cell: str | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = shell.run_line_magic("selfspec", line) if cell is None else shell.run_cell_magic("selfspec", line, cell)
    assert result is None
    assert said in capsys.readouterr().err


def test_what_if_takes_the_last_trace_and_the_open_model(shell: Any, tiny_folder: Path) -> None:
    shell.run_line_magic("selfspec", f"load {tiny_folder}")
    shell.user_ns["model"].calibration = calibration(memory_step())
    shell.run_cell_magic("selfspec", "--max-new-tokens 5 --temperature 0", "abc\n")
    view = shell.run_line_magic("selfspec", "what-if")
    assert isinstance(view, WhatIf)
    assert view.num_tokens == 5
    assert view.can_measure


def test_calibrate_is_the_command_lines(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_line_magic("selfspec", "calibrate --model /nowhere --prompts /nowhere.jsonl")
    err = capsys.readouterr().err
    assert "Error:" in err
    assert "calibrate ended with" in err


def test_without_a_notebook_show_writes_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_calibration(tmp_path / "best.json", calibration(memory_step()), {})
    for shown in (tmp_path / "best.json", str(tmp_path / "best.json"), calibration(memory_step())):
        assert selfspec.show(shown) is None
        assert "1.25x (1.10 to 1.45) as fast as plain decoding" in capsys.readouterr().out
    selfspec.show(made_up_trace())
    assert "Settled after layer" in capsys.readouterr().out


def test_what_cannot_be_shown_is_refused() -> None:
    with pytest.raises(UsageError, match="int cannot be shown"):
        selfspec.show(3)  # type: ignore[arg-type]


def test_in_a_notebook_show_displays_the_widget_once(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs: list[Any] = []
    monkeypatch.setattr("selfspec.showing.in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda data, **_: outputs.append(data))
    shown = selfspec.show(made_up_trace())
    assert isinstance(shown.view, ExitDepthView)
    shown._ipython_display_()
    assert len(outputs) == 2
