"""``selfspec generate``: one text, or one for each prompt of a file."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfspec.cli.asked_prompts import asked_prompts
from selfspec.cli.console import Terminal
from selfspec.cli.options import PROMPT, ModelOptions, QuietOption, SamplingOptions, TemplateOptions, TextOptions
from selfspec.cli.plan_options import PlanOptions
from selfspec.cli.row_options import RowOptions
from selfspec_runtime.errors import CapacityError, NumericalError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selfspec.cli.asked_prompts import AskedPrompt
    from selfspec.model import SpeculativeModel
    from selfspec.request import GenerationOptions

PromptOption = Annotated[
    str | None, typer.Option("--prompt", "-p", help="The prompt; - reads it from stdin.", rich_help_panel=PROMPT)
]
FileOption = Annotated[
    Path | None,
    typer.Option(
        "--file",
        "-f",
        help="A text file with one prompt, or a jsonl, json or csv file of many.",
        rich_help_panel=PROMPT,
    ),
]
RawOption = Annotated[
    bool, typer.Option("--no-chat-template", help="Take the prompt as it is.", rich_help_panel=PROMPT)
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document per prompt on stdout.")]


def generate(
    *,
    plan: PlanOptions,
    model: ModelOptions,
    sampling: SamplingOptions,
    text: TextOptions,
    template: TemplateOptions,
    rows: RowOptions,
    prompt: PromptOption = None,
    file: FileOption = None,
    raw: RawOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Generate text from --prompt, from --file, or from stdin.

    The text goes to stdout as it comes, speed and notices to stderr. Of a file of many prompts every row is answered,
    equal ones too, up to the first that the model cannot take; rows that are no prompts are named on stderr, and --json
    gives each answer's line.
    """
    terminal = Terminal(quiet=quiet)
    prompts, notices = asked_prompts(prompt, file, rows)
    for notice in notices:
        terminal.notice(notice)

    from selfspec.cli.libraries import quiet_libraries
    from selfspec.cli.opened import open_named
    from selfspec.request import make_options

    given = {**sampling.given(), **text.given(), **template.given()}
    with quiet_libraries():
        opened = open_named(model, plan, terminal)
        for asked in prompts:
            options = make_options(**given, raw=raw or asked.is_raw)
            with _named(asked.place):
                (_write_json if as_json else _write_text)(opened, asked, options, terminal)


@contextmanager
def _named(place: str | None) -> Iterator[None]:
    """Says of which prompt an error is."""
    try:
        yield
    except (UsageError, CapacityError, NumericalError) as error:
        if place is None:
            raise
        raise type(error)(f"{place}: {error}") from error


def _write_text(opened: SpeculativeModel, asked: AskedPrompt, options: GenerationOptions, terminal: Terminal) -> None:
    from selfspec.cli.summary import speed_line
    from selfspec.result import Result
    from selfspec_runtime.decoder import RunRecord

    request, record, steps = opened.request(asked.content, options), RunRecord(), []
    _say(set(request.notices) - set(opened.defaults.notices), terminal)
    try:
        for step in opened.steps(request, record=record):
            steps.append(step)
            terminal.piece(step.text)
    finally:
        if steps:
            terminal.piece("\n")
    terminal.notice(speed_line(Result.of(request, steps, record)))


def _write_json(opened: SpeculativeModel, asked: AskedPrompt, options: GenerationOptions, terminal: Terminal) -> None:
    from selfspec.cli.summary import result_json

    result = opened.run(opened.request(asked.content, options))
    line = {} if asked.line is None else {"line": asked.line}
    terminal.result(json.dumps({**line, **result_json(result, opened.plan)}, ensure_ascii=False))


def _say(notices: set[str], terminal: Terminal) -> None:
    for notice in sorted(notices):
        terminal.notice(notice)
