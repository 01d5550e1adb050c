"""``selfspec compare``: which family of drafts helps this model, on these prompts, on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selfspec.cli.calibrate_options import FILES, SEARCH, FileOptions, SearchOptions, file_layers, merge_settings
from selfspec.cli.console import Terminal
from selfspec.cli.options import FormatOption, ModelOptions, QuietOption, SamplingOptions, TemplateOptions
from selfspec.cli.outputs import model_files, prepare_output, refuse_overlap
from selfspec_runtime.errors import UsageError

if TYPE_CHECKING:
    from selfspec_calibrate.comparison import Comparison
    from selfspec_calibrate.settings import CalibrationSettings

DEFAULTS: dict[str, Any] = {"output": Path("compare.json"), "budget_s": 1800.0}
"""A comparison measures every family on every held-out prompt, and takes the time for it."""

OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="The comparison file to write (default compare.json).", rich_help_panel=FILES),
]
HeldOutOption = Annotated[
    float | None,
    typer.Option("--held-out", help="Share of prompts that plans are measured on.", rich_help_panel=FILES),
]
BudgetOption = Annotated[
    str | None,
    typer.Option("--budget", metavar="10m|600s|1h", help="Time to take (default 30m).", rich_help_panel=SEARCH),
]
MarkdownOption = Annotated[
    Path | None,
    typer.Option("--markdown", help="Write the tables as Markdown into this file too.", rich_help_panel=FILES),
]
SpecBenchOption = Annotated[
    Path | None,
    typer.Option(
        "--spec-bench",
        metavar="QUESTION.JSONL",
        help="Spec-Bench's questions, in the place of --prompts; its groups are reported by its own definition too.",
        rich_help_panel=FILES,
    ),
]


@dataclass(frozen=True, kw_only=True)
class ComparisonFiles(FileOptions):
    """What is read and written."""

    output: OutputOption = None
    held_out: HeldOutOption = None


@dataclass(frozen=True, kw_only=True)
class ComparisonSearch(SearchOptions):
    """What is searched, and for how long."""

    budget: BudgetOption = None


def compare(
    *,
    model: ModelOptions,
    files: ComparisonFiles,
    search: ComparisonSearch,
    sampling: SamplingOptions,
    template: TemplateOptions,
    spec_bench: SpecBenchOption = None,
    markdown: MarkdownOption = None,
    form: FormatOption = "table",
    quiet: QuietOption = False,
) -> None:
    """Measure the best plan of every family of drafts side by side, on held-out prompts, in one run.

    The default budget is 30 minutes. An interrupted run goes on when the same command is given again. Families that are
    left out are listed with the reason.
    """
    terminal = Terminal(quiet=quiet)
    settings = _settings(model, files, search, sampling, template, spec_bench=spec_bench)
    _prepare(settings, markdown, {**files.read(), **template.read()})
    comparison = _run(settings, terminal, spec_bench=spec_bench is not None)

    from selfspec.cli.comparison_tables import comparison_sheets
    from selfspec.cli.sheet import as_markdown, show_sheets
    from selfspec_runtime.atomic import write_atomically

    sheets = comparison_sheets(comparison)
    show_sheets(sheets, form, terminal)
    if markdown is not None:
        text = "\n\n".join(as_markdown(sheet) for sheet in sheets) + "\n"
        write_atomically(markdown, text.encode())
    terminal.notice(f"Written to {settings.output}.")


def _prepare(settings: CalibrationSettings, markdown: Path | None, read: dict[str, Path | None]) -> None:
    written = {"--output": settings.output} | ({} if markdown is None else {"--markdown": markdown})
    refuse_overlap(written, {"the prompt file": settings.prompts, **read, **model_files(settings.model.model)})
    for option, path in written.items():
        prepare_output(path, option=option)


def _settings(
    model: ModelOptions,
    files: FileOptions,
    search: SearchOptions,
    sampling: SamplingOptions,
    template: TemplateOptions,
    *,
    spec_bench: Path | None,
) -> CalibrationSettings:
    given = {"model": model.given(), **files.given(), **search.given(), **sampling.given(), **template.given()}
    if spec_bench is not None:
        if files.prompts is not None:
            raise UsageError("--spec-bench takes the place of --prompts: give one of them.")
        given["prompts"] = spec_bench
    return merge_settings(DEFAULTS, *file_layers(files), given)


def _run(settings: CalibrationSettings, terminal: Terminal, *, spec_bench: bool) -> Comparison:
    from selfspec.cli.libraries import quiet_libraries
    from selfspec.cli.progress import CalibrationProgress

    with quiet_libraries(), CalibrationProgress(terminal, budget_s=settings.budget_s) as progress:
        from selfspec_calibrate.compare import compare as run

        return run(settings, progress, spec_bench=spec_bench)
