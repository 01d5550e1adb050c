"""``selfspec calib``: look at calibration files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from selfspec.cli.console import Terminal
from selfspec.cli.option_groups import grouped
from selfspec.cli.options import FormatOption, ModelOptions

FileArgument = Annotated[Path, typer.Argument(metavar="CALIBRATION", help="The file that calibrate wrote.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Accept other weights of the same architecture.")]

calib = typer.Typer(no_args_is_help=True, help="Show, check and describe calibration files.")


@calib.command()
def show(*, file: FileArgument, form: FormatOption = "table") -> None:
    """Show what a calibration found, with the evidence."""
    from selfspec.cli.sheet import show_sheets
    from selfspec.cli.tables import calibration_sheets
    from selfspec_runtime.calibration_store import load_calibration

    loaded = load_calibration(file)
    show_sheets(calibration_sheets(loaded.calibration), form, Terminal())


@calib.command()
@grouped
def validate(*, file: FileArgument, model: ModelOptions, force: ForceOption = False) -> None:
    """Check that a file and its arrays are whole and, with --model, that they are for this model."""
    terminal = Terminal()

    from selfspec_runtime.calibration_store import check_fingerprint, load_calibration

    loaded = load_calibration(file)
    step = loaded.calibration.steps[loaded.calibration.chosen]
    terminal.result(f"{file} is whole: {step.plan.describe()}, {'enabled' if step.enabled else 'not enabled'}.")
    if model.model is None:
        return

    from selfspec.cli.libraries import quiet_libraries
    from selfspec_runtime.loading import load_model

    with quiet_libraries():
        spec = model.over(loaded.calibration.model)
        for notice in check_fingerprint(loaded.calibration, load_model(spec), force=force):
            terminal.notice(notice)
        terminal.result(f"It is for {spec.model}.")


@calib.command()
def schema() -> None:
    """Print the JSON schema of calibration files."""
    from selfspec_runtime.calibration_store import calibration_schema

    Terminal().result(json.dumps(calibration_schema(), indent=2, sort_keys=True))
