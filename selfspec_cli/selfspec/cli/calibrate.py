"""``selfspec calibrate``: find out what really makes a model faster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from selfspec.cli.calibrate_options import FileOptions, SearchOptions, VerdictOptions, file_layers, merge_settings
from selfspec.cli.console import Terminal
from selfspec.cli.options import FormatOption, ModelOptions, QuietOption, SamplingOptions, TemplateOptions
from selfspec.cli.outputs import model_files, prepare_output, refuse_overlap, require_file
from selfspec_runtime.errors import SpeedupNotMetError

if TYPE_CHECKING:
    from pathlib import Path

    from selfspec_calibrate.settings import CalibrationSettings
    from selfspec_runtime.calibration import Calibration

DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be done; no weights are loaded, nothing is written.")
]


def calibrate(
    *,
    model: ModelOptions,
    files: FileOptions,
    search: SearchOptions,
    verdict: VerdictOptions,
    sampling: SamplingOptions,
    template: TemplateOptions,
    form: FormatOption = "table",
    dry_run: DryRunOption = False,
    quiet: QuietOption = False,
) -> None:
    """Find out what really makes this model faster, on these prompts, on this machine, and write it to a file.

    The result table goes to stdout, progress to stderr. An interrupted run goes on when the same command is given
    again.
    """
    terminal = Terminal(quiet=quiet)
    groups = (files, search, verdict, sampling, template)
    given = {name: value for group in groups for name, value in group.given().items()}
    settings = merge_settings(*file_layers(files), {"model": model.given(), **given})
    _check_output(settings, {**files.read(), **template.read()})
    if dry_run:
        _dry_run(settings, terminal)
        return
    prepare_output(settings.output)
    calibration = _run(settings, terminal)

    from selfspec.cli.sheet import show_sheets
    from selfspec.cli.tables import calibration_sheets

    show_sheets(calibration_sheets(calibration), form, terminal)
    terminal.notice(f"Written to {settings.output}. Use it: selfspec chat {settings.output}")
    require_speedup(calibration, settings.require_speedup)


def require_speedup(calibration: Calibration, required: float | None) -> None:
    """Ends with exit code 3 where the chosen plan does not reach what was asked for.

    Raises:
        SpeedupNotMetError: It does not.
    """
    if required is None:
        return
    step = calibration.steps[calibration.chosen]
    reached = step.overall.speedup.value if step.enabled and step.overall is not None else 1.0
    if reached < required:
        plan = step.plan.describe() if step.enabled else "plain decoding"
        message = f"The speedup is {reached:.2f}x ({plan}), and --require-speedup asks for {required:g}x."
        raise SpeedupNotMetError(message)


def _check_output(settings: CalibrationSettings, read: dict[str, Path | None]) -> None:
    require_file(settings.output)
    written = {"--output": settings.output, "the arrays of --output": settings.output.with_suffix(".safetensors")}
    refuse_overlap(written, {"the prompt file": settings.prompts, **read, **model_files(settings.model.model)})


def _run(settings: CalibrationSettings, terminal: Terminal) -> Calibration:
    from selfspec.cli.libraries import quiet_libraries
    from selfspec.cli.progress import CalibrationProgress

    with quiet_libraries(), CalibrationProgress(terminal, budget_s=settings.budget_s) as progress:
        from selfspec_calibrate.pipeline import calibrate as run

        return run(settings, progress)


def _dry_run(settings: CalibrationSettings, terminal: Terminal) -> None:
    from selfspec.cli.libraries import quiet_libraries

    with quiet_libraries():
        from selfspec_calibrate.pipeline import dry_run

        for line in dry_run(settings).lines:
            terminal.result(line)
