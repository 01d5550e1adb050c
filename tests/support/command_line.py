"""Runs the command line in this process, as a user would."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfspec.cli.__main__ import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


@dataclass(frozen=True)
class Run:
    """What a command did.

    Attributes:
        code: Its exit code.
        out: What it wrote to stdout.
        err: What it wrote to stderr.
    """

    code: int
    out: str
    err: str


class CommandLine:
    """Types commands; the environment is kept apart from the developer's own.

    Args:
        capture: Reads what was written.
        patch: Changes the environment for one test.
        folder: The current folder of the commands.
    """

    def __init__(self, capture: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch, folder: Path) -> None:
        self.capture = capture
        self.patch = patch
        for name in ("SELFSPEC_MODEL", "SELFSPEC_DEBUG", "COLUMNS", "FORCE_COLOR"):
            patch.delenv(name, raising=False)
        patch.chdir(folder)

    def __call__(self, *arguments: object, stdin: str = "") -> Run:
        """Runs ``selfspec`` with these arguments; stdin is never a terminal."""
        self.patch.setattr(sys, "stdin", io.StringIO(stdin))
        self.capture.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = self.capture.readouterr()
        return Run(code, captured.out, captured.err)
