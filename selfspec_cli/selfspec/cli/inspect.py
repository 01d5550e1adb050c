"""``selfspec inspect``: how deep the model had to go, token by token."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfspec.cli.console import Terminal, console
from selfspec.cli.generate import PromptOption, RawOption
from selfspec.cli.options import ModelOptions, QuietOption, SamplingOptions, TemplateOptions, TextOptions
from selfspec.cli.outputs import calibration_files, model_files, refuse_overlap
from selfspec.cli.plan_options import PlanOptions
from selfspec.cli.streams import read_stdin
from selfspec_runtime.errors import UsageError

if TYPE_CHECKING:
    from selfspec_runtime.token_trace import TokenTrace

OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out", "-o", help="Write it to a file instead: .html to look at, .json or .safetensors for the arrays."
    ),
]
NumCandidatesOption = Annotated[
    int, typer.Option("--num-candidates", min=1, max=64, help="Likeliest tokens kept per layer in the arrays.")
]

PAGE_SUFFIXES = (".html", ".htm")
ARRAY_SUFFIXES = (".json", ".safetensors")


def inspect(
    *,
    plan: PlanOptions,
    model: ModelOptions,
    sampling: SamplingOptions,
    text: TextOptions,
    template: TemplateOptions,
    prompt: PromptOption = None,
    raw: RawOption = False,
    out: OutOption = None,
    num_candidates: NumCandidatesOption = 3,
    quiet: QuietOption = False,
) -> None:
    """Show how every token of an answer came about, and how many layers it needed.

    Colours say after which layer a token is settled, underlines whether it was drafted and accepted.
    """
    terminal = Terminal(quiet=quiet)
    _require_known(out)
    if out is not None:
        read = {**calibration_files(plan.file(model.model)), **model_files(model.model), **template.read()}
        refuse_overlap(_written(out), read)
    asked = _prompt(prompt)

    from selfspec.cli.libraries import quiet_libraries
    from selfspec.cli.opened import open_named

    given = {**sampling.given(), **text.given(), **template.given()}
    with quiet_libraries():
        opened = open_named(model, plan, terminal)
        trace = opened.trace(asked, num_candidates=num_candidates, raw=raw, **given)
    if out is None:
        _show(trace, terminal)
    else:
        write_trace(trace, out)
        terminal.result(str(out))


def write_trace(trace: TokenTrace, out: Path) -> None:
    """Writes a trace as the file's name asks for.

    Args:
        trace: The trace.
        out: A page (.html), or arrays (.json and .safetensors beside each other).

    Raises:
        UsageError: The name has another ending.
        SelfspecError: The file cannot be written.
    """
    _require_known(out)
    if out.suffix.lower() in ARRAY_SUFFIXES:
        trace.save(out)
        return
    from selfspec.views.exit_depth_html import exit_depth_page
    from selfspec_runtime.atomic import write_atomically

    write_atomically(out, exit_depth_page(trace).encode())


def _show(trace: TokenTrace, terminal: Terminal) -> None:
    from selfspec.views.exit_depth_text import exit_depth_text

    stdout = console()
    terminal.show(exit_depth_text(trace, marks=stdout.no_color or stdout.color_system is None))


def _written(out: Path) -> dict[str, Path]:
    """The trace's files, of which each may be named."""
    if out.suffix.lower() in PAGE_SUFFIXES:
        return {"--out": out}
    return {f"the trace's {suffix} file": out.with_suffix(suffix) for suffix in ARRAY_SUFFIXES}


def _require_known(out: Path | None) -> None:
    if out is not None and out.suffix.lower() not in (*PAGE_SUFFIXES, *ARRAY_SUFFIXES):
        message = f"-o {out}: a trace is written as .html, .json or .safetensors. Choose one of these endings."
        raise UsageError(message)


def _prompt(prompt: str | None) -> str:
    if prompt is not None and prompt != "-":
        return prompt
    if prompt is None and sys.stdin.isatty():
        message = "There is no prompt. Give --prompt TEXT, or pipe text in."
        raise UsageError(message)
    return read_stdin()
