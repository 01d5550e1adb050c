"""The application: commands, what they are called, and what their exit codes mean."""

from __future__ import annotations

from typing import Annotated

import typer

from selfspec.cli.bench import bench
from selfspec.cli.calib import calib
from selfspec.cli.calibrate import calibrate
from selfspec.cli.chat import chat
from selfspec.cli.compare import compare
from selfspec.cli.console import Terminal
from selfspec.cli.doctor import doctor
from selfspec.cli.estimate import estimate
from selfspec.cli.generate import generate
from selfspec.cli.inspect import inspect
from selfspec.cli.option_groups import grouped
from selfspec.cli.recipes import recipes
from selfspec.cli.report import report

EPILOG = (
    "Exit codes: 0 done, 1 failed, 2 wrong usage (options, files, plans), 3 --require-speedup was not reached, "
    "130 interrupted. SELFSPEC_DEBUG=1 shows tracebacks."
)


def _with_dashes(name: str) -> str:
    """``--max_new_tokens`` is ``--max-new-tokens``; only the parser knows what is a name and what is a value."""
    return name.replace("_", "-")


app = typer.Typer(
    name="selfspec",
    help="Make your own language model faster without changing what it says.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"], "token_normalize_func": _with_dashes},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        Terminal().result(f"selfspec {version('selfspec')}")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Make your own language model faster without changing what it says."""
    del version


for command in (calibrate, compare, chat, generate, bench, inspect, report, doctor, estimate):
    app.command()(grouped(command))
app.add_typer(calib, name="calib")
app.add_typer(recipes, name="recipes")
