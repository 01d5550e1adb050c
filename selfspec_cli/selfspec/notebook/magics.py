"""``%load_ext selfspec``: load a calibrated model, prompt it from a cell, calibrate with live progress."""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from IPython.core.magic import Magics, line_cell_magic, magics_class

from selfspec.cli.console import visible
from selfspec.showing import show, view_of
from selfspec_runtime.errors import SelfspecError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from selfspec.model import SpeculativeModel
    from selfspec_runtime.step import SpeculativeStep
    from selfspec_runtime.token_trace import TokenTrace

USAGE = """Use one of these:
    %selfspec load best.json            opens a calibrated model, as `model`
    %%selfspec --max-new-tokens 128     the rest of the cell is the prompt
    %selfspec show best.json            shows what a calibration found
    %selfspec what-if                   what another early exit would bring, over the last trace
    %selfspec calibrate --model ...     as on the command line; interrupt and run again to go on"""


@magics_class
class SelfspecMagics(Magics):
    """The magics; one model is open at a time.

    Attributes:
        model: The open model, or None.
    """

    model: SpeculativeModel | None = None

    @line_cell_magic
    def selfspec(self, line: str, cell: str | None = None) -> Any:
        """Runs a command, or generates from the cell's text and shows how deep the model had to go."""
        try:
            words = shlex.split(line)
            return self._command(words) if cell is None else self._generate(words, cell)
        except ValueError as error:
            sys.stderr.write(f"Error: {error}\n")
        except SelfspecError as error:
            sys.stderr.write(f"Error: {visible(str(error))}\n")
        return None

    @property
    def _names(self) -> dict[str, Any]:
        """The notebook's variables."""
        shell: Any = self.shell
        names: dict[str, Any] = shell.user_ns
        return names

    def _command(self, words: Sequence[str]) -> Any:
        commands: dict[str, Callable[[Sequence[str]], Any]] = {
            "load": self._load,
            "show": self._show,
            "what-if": self._what_if,
            "calibrate": self._calibrate,
        }
        name, *rest = words or ("",)
        if name not in commands:
            raise UsageError(USAGE)
        return commands[name](rest)

    def _load(self, words: Sequence[str]) -> None:
        from selfspec.cli.libraries import quiet_libraries
        from selfspec.opening import load

        parser = _Parser("%selfspec load")
        parser.add_argument("source")
        parser.add_argument("--plan")
        parser.add_argument("--max-extra-memory")
        parser.add_argument("--device")
        parser.add_argument("--force", action="store_true")
        given = vars(parser.parse_args(words))
        with quiet_libraries():
            self.model = load(given.pop("source"), **given)
        self._names["model"] = self.model
        for notice in self.model.notices:
            sys.stderr.write(f"{notice}\n")
        sys.stdout.write(f"{self.model.plan.describe()}; the model is in the variable `model`.\n")

    def _show(self, words: Sequence[str]) -> Any:
        if len(words) != 1:
            raise UsageError(USAGE)
        return show(words[0])

    def _what_if(self, words: Sequence[str]) -> Any:
        if words:
            raise UsageError(USAGE)
        from selfspec.notebook.what_if import WhatIf

        return WhatIf(self._names.get("trace"), self._open_model())

    def _calibrate(self, words: Sequence[str]) -> None:
        from selfspec.cli.__main__ import main

        code = main(["calibrate", *words])
        if code:
            sys.stderr.write(f"calibrate ended with {code}; see above.\n")

    def _open_model(self) -> SpeculativeModel:
        found: SpeculativeModel | None = self.model or self._names.get("model")
        if found is None:
            message = "No model is open. Run: %selfspec load best.json"
            raise UsageError(message)
        return found

    def _generate(self, words: Sequence[str], prompt: str) -> Any:
        model = self._open_model()
        parser = _Parser("%%selfspec")
        parser.add_argument("--max-new-tokens", type=int, default=256)
        parser.add_argument("--temperature", type=float)
        parser.add_argument("--top-p", type=float)
        parser.add_argument("--top-k", type=int)
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument("--system")
        parser.add_argument("--raw", action="store_true")
        trace = _streamed(model, prompt.rstrip("\n"), **vars(parser.parse_args(words)))
        self._names["trace"] = trace
        return view_of(trace)


class _Parser(argparse.ArgumentParser):
    """Arguments of a magic; what is wrong with them is an error like any other."""

    def __init__(self, name: str) -> None:
        super().__init__(prog=name, add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raises instead of ending the process.

        Raises:
            UsageError: Always.
        """
        raise UsageError(f"{self.prog}: {message}.\n{USAGE}")


def _streamed(model: SpeculativeModel, prompt: str, **options: Any) -> TokenTrace:
    """Generates with the text written as it comes; an interrupt ends the text, and what there is of it is traced."""
    from selfspec_calibrate.interruption import InterruptGuard

    def write(step: SpeculativeStep) -> None:
        sys.stdout.write(visible(step.text))
        sys.stdout.flush()

    with InterruptGuard() as guard:
        trace = model.trace(prompt, on_step=write, criteria=lambda _: guard.requested, **options)
    sys.stdout.write("\n" if not guard.requested else "\n(interrupted)\n")
    return trace


def register(shell: Any) -> None:
    """Registers the magics with an IPython shell."""
    shell.register_magics(SelfspecMagics)
