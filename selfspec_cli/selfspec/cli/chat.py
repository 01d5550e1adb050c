"""``selfspec chat``: talk with a model at the terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from selfspec.cli.console import Terminal
from selfspec.cli.options import ModelOptions, QuietOption, SamplingOptions, TemplateOptions, TextOptions
from selfspec.cli.outputs import calibration_files, model_files
from selfspec.cli.plan_options import PlanOptions
from selfspec.cli.streams import lines_of_stdin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selfspec.cli.chat_session import ChatSession

PROMPT = ">>> "


def chat(
    *,
    plan: PlanOptions,
    model: ModelOptions,
    sampling: SamplingOptions,
    text: TextOptions,
    template: TemplateOptions,
    quiet: QuietOption = False,
) -> None:
    """Chat with a model; /help lists what can be done beside talking.

    Ctrl-C stops a reply and keeps what came so far; Ctrl-D, or Ctrl-C between replies, leaves. Without a terminal, each
    line of stdin is one message, Ctrl-C ends it all, and the exit code is that of the last message that failed.
    """
    terminal = Terminal(quiet=quiet)

    from selfspec.cli.chat_session import ChatSession
    from selfspec.cli.libraries import quiet_libraries
    from selfspec.cli.opened import open_named

    with quiet_libraries():
        opened = open_named(model, plan, terminal)
        conversation = opened.chat(**sampling.given(), **text.given(), **template.given())
        session = ChatSession(
            conversation,
            terminal,
            ends_when_stopped=not terminal.is_interactive,
            read={**calibration_files(plan.file(model.model)), **model_files(model.model), **template.read()},
        )
        if terminal.is_interactive:
            terminal.notice("/help lists the commands, Ctrl-D leaves.")
            _talk(session, typed_lines())
        else:
            _talk(session, lines_of_stdin())
    if session.failure is not None and not terminal.is_interactive:
        raise typer.Exit(session.failure.exit_code)


def _talk(session: ChatSession, lines: Iterator[str]) -> None:
    for line in lines:
        if not session.handle(line):
            return


def typed_lines() -> Iterator[str]:
    """Lines typed at a terminal, with editing and history, until Ctrl-D or Ctrl-C."""
    try:
        import readline  # noqa: F401 - input() uses it once it is imported
    except ImportError:
        pass  # not on every system; input() works without
    while True:
        try:
            yield input(PROMPT)
        except (EOFError, KeyboardInterrupt):
            sys.stdout.write("\n")
            return
