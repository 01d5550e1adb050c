from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.main import get_command

from selfspec.cli import __main__ as entry
from selfspec.cli.__main__ import main
from selfspec.cli.app import app
from selfspec_runtime import errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.command_line import CommandLine

COMMANDS = ("calibrate", "chat", "generate", "bench", "doctor", "estimate", "calib", "recipes")


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["chat", "--help"], ["calibrate", "-h"], ["recipes", "list"]]
)
def test_quick_answers_import_nothing_heavy(arguments: list[str]) -> None:
    script = (
        "import sys\nfrom selfspec.cli.__main__ import main\n"
        f"code = main({arguments!r})\n"
        "heavy = {'torch', 'transformers', 'optuna', 'numpy', 'scipy', 'bitsandbytes'} & set(sys.modules)\n"
        "sys.exit(code or (f'imported {heavy}' if heavy else 0))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_estimates_import_no_torch() -> None:
    script = (
        "import sys\nfrom selfspec.cli.__main__ import main\n"
        "code = main(['estimate', '-c', '0.3'])\nsys.exit(code or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode == 0


def test_help_lists_commands_and_documents_exit_codes(selfspec_command: CommandLine) -> None:
    run = selfspec_command("--help")
    assert run.code == 0
    text = " ".join(run.out.split())
    assert all(f" {command} " in text for command in COMMANDS)
    for meaning in ("0 done", "1 failed", "2 wrong usage", "3 --require-speedup was not reached", "130 interrupted"):
        assert meaning in text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(selfspec_command: CommandLine, command: str) -> None:
    run = selfspec_command(command, "--help")
    assert run.code == 0
    assert f"selfspec {command}" in run.out


def test_the_version_is_shown(selfspec_command: CommandLine) -> None:
    assert selfspec_command("--version").out == f"selfspec {version('selfspec')}\n"


@pytest.mark.parametrize("arguments", [["nonsense"], ["chat", "--nonsense"], ["estimate"], ["bench", "--limit", "0"]])
def test_wrong_usage_ends_with_2(selfspec_command: CommandLine, arguments: list[str]) -> None:
    run = selfspec_command(*arguments)
    assert run.code == 2
    assert run.out == ""
    assert run.err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (errors.SelfspecError("It failed [/INST]. Do this."), 1, "Error: It failed [/INST]. Do this.\n"),
        (errors.ModelError("No model."), 1, "Error: No model.\n"),
        (errors.UsageError("Wrong."), 2, "Error: Wrong.\n"),
        (errors.SpeedupNotMetError("Slow."), 3, "Error: Slow.\n"),
        (errors.Interrupted("Saved."), 130, "Error: Saved.\n"),
        (KeyboardInterrupt(), 130, ""),
        (
            ZeroDivisionError("by zero"),
            1,
            "Error: This should not have happened (ZeroDivisionError: by zero). Please report it with what "
            "SELFSPEC_DEBUG=1 shows for the same command.\n",
        ),
    ],
)
def test_errors_become_a_sentence_and_an_exit_code(
    selfspec_command: CommandLine, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    monkeypatch.setattr("selfspec.recipe.recipe_names", _raising(error))
    run = selfspec_command("recipes", "list")
    assert (run.code, run.out, run.err) == (code, "", message)


def test_debugging_shows_the_traceback(selfspec_command: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfspec.recipe.recipe_names", _raising(ZeroDivisionError("by zero")))
    monkeypatch.setenv("SELFSPEC_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        selfspec_command("recipes", "list")


def _raising(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def test_arguments_come_from_the_process_by_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["selfspec", "--version"])
    assert main() == 0
    assert "selfspec" in capsys.readouterr().out


def test_a_reader_that_leaves_is_no_traceback() -> None:
    command = f"{sys.executable} -m selfspec.cli estimate -c 0.3 | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.startswith("Textbook estimate")


@pytest.mark.parametrize("prompt", ["-- SELECT user_id", "--user_id", "--max_tokens", "--x_y=a_b", "a_b", "--"])
@pytest.mark.parametrize("name", ["--max_new_tokens", "--max-new-tokens", "--max_tokens"])
def test_underscores_are_dashes_in_names_of_options_and_stay_in_values(name: str, prompt: str) -> None:
    command: Any = get_command(app)
    typed = [name, "7", "--prompt", prompt, f"--stop={prompt}", "--draft", "early_exit"]
    around = command.make_context("selfspec", ["generate", *typed])
    params = command.commands["generate"].make_context("generate", typed, parent=around).params
    assert (params["max_new_tokens"], params["prompt"], params["draft"]) == (7, prompt, "early-exit")
    assert list(params["stop"]) == [prompt]


def test_ctrl_c_while_the_program_starts_is_no_traceback() -> None:
    script = (
        "import sys\nfrom selfspec.cli.__main__ import main\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.startswith('rich'):\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "sys.exit(main(['--version']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_under_stdout_is_said() -> None:
    command = f"{sys.executable} -m selfspec.cli estimate -c 0.3 > /dev/full"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: The system refused: no space left on device.")


def test_the_entry_point_is_the_installed_script() -> None:
    from importlib.metadata import entry_points

    script = next(point for point in entry_points(group="console_scripts") if point.name == "selfspec")
    assert script.load() is entry.main
