"""``selfspec report``: a calibration as one file that can be sent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfspec.cli.console import Terminal
from selfspec.cli.options import QuietOption
from selfspec.cli.outputs import calibration_files, refuse_overlap

FileArgument = Annotated[Path, typer.Argument(metavar="CALIBRATION", help="The file that calibrate wrote.")]
OutOption = Annotated[Path, typer.Option("--out", "-o", help="Where to write the report.")]


def report(*, file: FileArgument, out: OutOption = Path("report.html"), quiet: QuietOption = False) -> None:
    """Write a calibration's report: one HTML file without scripts, that loads nothing.

    It holds the verdict, the numbers by kind of prompt with intervals, the evidence, and the environment; no prompts.
    """
    terminal = Terminal(quiet=quiet)
    refuse_overlap({"--out": out}, calibration_files(file))

    from selfspec.views.calibration_html import calibration_page
    from selfspec.views.calibration_words import verdict
    from selfspec_runtime.atomic import write_atomically
    from selfspec_runtime.calibration_store import load_calibration

    calibration = load_calibration(file).calibration
    write_atomically(out, calibration_page(calibration).encode())
    terminal.notice(verdict(calibration))
    terminal.result(str(out))
