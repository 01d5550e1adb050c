"""``selfspec generate``: one text, or one for each prompt of a file."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfspec.cli.console import Terminal
from selfspec.cli.option_values import read_text
from selfspec.cli.options import PROMPT, ModelOptions, QuietOption, SamplingOptions, TemplateOptions, TextOptions
from selfspec.cli.plan_options import PlanOptions
from selfspec.cli.streams import read_stdin
from selfspec_runtime.errors import CapacityError, NumericalError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selfspec.model import SpeculativeModel
    from selfspec.prompt_ids import PromptLike
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

PROMPT_FILE_SUFFIXES = (".jsonl", ".json", ".ndjson", ".csv", ".tsv", ".gz")


def generate(
    *,
    plan: PlanOptions,
    model: ModelOptions,
    sampling: SamplingOptions,
    text: TextOptions,
    template: TemplateOptions,
    prompt: PromptOption = None,
    file: FileOption = None,
    raw: RawOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Generate text from --prompt, from --file, or from stdin.

    The text goes to stdout as it comes, speed and notices to stderr.
    """
    terminal = Terminal(quiet=quiet)
    prompts = list(_prompts(prompt, file))

    from selfspec.cli.libraries import quiet_libraries
    from selfspec.cli.opened import open_named
    from selfspec.request import make_options

    given = {**sampling.given(), **text.given(), **template.given()}
    with quiet_libraries():
        opened = open_named(model, plan, terminal)
        for asked in prompts:
            options = make_options(**given, raw=raw or asked.is_raw)
            with _named(asked.place):
                (_write_json if as_json else _write_text)(opened, asked.content, options, terminal)


@dataclass(frozen=True)
class _Asked:
    """A prompt, whether it is to be taken as it is, and ``file:line`` where it is one of many."""

    content: PromptLike
    is_raw: bool = False
    place: str | None = None


@contextmanager
def _named(place: str | None) -> Iterator[None]:
    """Says of which prompt an error is."""
    try:
        yield
    except (UsageError, CapacityError, NumericalError) as error:
        if place is None:
            raise
        raise type(error)(f"{place}: {error}") from error


def _write_text(opened: SpeculativeModel, prompt: PromptLike, options: GenerationOptions, terminal: Terminal) -> None:
    from selfspec.cli.summary import speed_line
    from selfspec.result import Result
    from selfspec_runtime.decoder import RunRecord

    request, record, steps = opened.request(prompt, options), RunRecord(), []
    _say(set(request.notices) - set(opened.defaults.notices), terminal)
    try:
        for step in opened.steps(request, record=record):
            steps.append(step)
            terminal.piece(step.text)
    finally:
        if steps:
            terminal.piece("\n")
    terminal.notice(speed_line(Result.of(request, steps, record)))


def _write_json(opened: SpeculativeModel, prompt: PromptLike, options: GenerationOptions, terminal: Terminal) -> None:
    from selfspec.cli.summary import result_json

    result = opened.run(opened.request(prompt, options))
    terminal.result(json.dumps(result_json(result, opened.plan), ensure_ascii=False))


def _say(notices: set[str], terminal: Terminal) -> None:
    for notice in sorted(notices):
        terminal.notice(notice)


def _prompts(prompt: str | None, file: Path | None) -> Iterator[_Asked]:
    if prompt is not None and file is not None:
        message = "--prompt and --file are both given. Give one."
        raise UsageError(message)
    if prompt is not None and prompt != "-":
        yield _Asked(prompt)
    elif file is not None:
        yield from _prompts_of(file)
    elif prompt == "-" or not sys.stdin.isatty():
        yield _Asked(_text_of_stdin())
    else:
        message = "There is no prompt. Give --prompt TEXT or --file FILE, or pipe text in."
        raise UsageError(message)


def _text_of_stdin() -> str:
    text = read_stdin()
    if not text:
        message = "The prompt is empty: stdin held nothing. Pipe text in, or give --prompt or --file."
        raise UsageError(message)
    return text


def _prompts_of(file: Path) -> Iterator[_Asked]:
    if file.suffix.lower() not in PROMPT_FILE_SUFFIXES:
        yield _Asked(read_text(file, "--file"))
        return
    from selfspec_calibrate.prompts.reader import read_prompts

    for prompt in read_prompts(file).prompts:
        has_turns = prompt.messages is not None
        yield _Asked(prompt.messages or prompt.text or "", is_raw=not has_turns, place=f"{file}:{prompt.line}")
