"""A chat at the terminal: carries out what a line means."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from selfspec.cli.chat_commands import Command, Say, Unknown, help_text, parse_line, parse_settings
from selfspec.cli.outputs import refuse_overlap
from selfspec.cli.summary import comparison_line, detail_lines, speed_line
from selfspec.saved_settings import settings_of, with_settings
from selfspec_runtime.errors import CapacityError, SelfspecError, UsageError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from selfspec.cli.console import Terminal
    from selfspec.conversation import Conversation
    from selfspec_runtime.step import SpeculativeStep

DEFAULT_FILE = "chat.json"
ROOM = "/undo takes the last exchange back, /clear forgets everything but the system message."


class ChatSession:
    """Takes lines, writes replies.

    Args:
        conversation: The conversation.
        terminal: Where replies and notices go.
        ends_when_stopped: Let Ctrl-C end the chat and not the reply alone.
        read: Files that nothing is saved over, by what each is.

    Attributes:
        failure: The latest error that was told, or None.
    """

    def __init__(
        self,
        conversation: Conversation,
        terminal: Terminal,
        *,
        ends_when_stopped: bool = False,
        read: Mapping[str, Path | None] | None = None,
    ) -> None:
        self.conversation = conversation
        self.terminal = terminal
        self.ends_when_stopped = ends_when_stopped
        self.read = read or {}
        self.failure: SelfspecError | None = None
        # What the model overrides of its generation config was said when it was opened.
        self._told: set[str] = set(conversation.model.defaults.notices)

    def handle(self, line: str) -> bool:
        """Carries out one line.

        Args:
            line: As typed.

        Returns:
            Whether to go on.
        """
        meant = parse_line(line)
        if isinstance(meant, Command) and meant.name == "exit":
            return False
        try:
            if isinstance(meant, Say):
                self._reply(self.conversation.stream(meant.text))
            elif isinstance(meant, Command):
                self._command(meant)
            elif isinstance(meant, Unknown):
                self.terminal.notice(f"There is no command {meant.name}; it was not sent to the model.")
                self.terminal.notice(help_text())
        except CapacityError as error:
            self._fail(error, remedy=f" {ROOM}")
        except SelfspecError as error:
            self._fail(error)
        return True

    def _fail(self, error: SelfspecError, *, remedy: str = "") -> None:
        self.failure = error
        self.terminal.error(f"{error}{remedy}")

    def _command(self, command: Command) -> None:
        actions = {
            "help": lambda _: self.terminal.notice(help_text()),
            "clear": self._clear,
            "retry": lambda _: self._reply(self.conversation.retry()),
            "undo": self._undo,
            "system": self._system,
            "set": self._set,
            "spec": self._spec,
            "stats": self._stats,
            "save": self._save,
            "load": self._load,
        }
        actions[command.name](command.argument)

    def _reply(self, steps: Generator[SpeculativeStep]) -> None:
        """Writes a reply as it comes; Ctrl-C ends it, and what came so far stays in the conversation."""
        num_steps, is_stopped = 0, False
        try:
            with closing(steps):
                for num_steps, step in enumerate(steps, start=1):  # noqa: B007 - counts what came before an exception
                    self.terminal.piece(step.text)
        except KeyboardInterrupt:
            if self.ends_when_stopped:
                raise
            is_stopped = True
        finally:
            if num_steps:
                self.terminal.piece("\n")
        if is_stopped:
            self._tell_stopped(anything=num_steps > 0)
        else:
            self._tell_done()

    def _tell_stopped(self, *, anything: bool) -> None:
        kept = "the reply so far is kept. /retry gives another one, /undo takes it back."
        self.terminal.notice(f"Stopped; {kept if anything else 'nothing had come yet, and nothing is kept.'}")

    def _tell_done(self) -> None:
        last = self.conversation.last
        assert last is not None
        self._tell(last.notices)
        self.terminal.notice(speed_line(last))
        if last.finish_reason != "length":
            return
        if len(last.token_ids) < self.conversation.options.max_new_tokens:
            self.terminal.notice(f"The model's context is full. {ROOM}")
        else:
            self.terminal.notice("The reply was cut at max_new_tokens. /set max_new_tokens=1000 allows longer ones.")

    def _tell(self, notices: tuple[str, ...]) -> None:
        """Says each notice once in a chat."""
        for notice in notices:
            if notice not in self._told:
                self._told.add(notice)
                self.terminal.notice(notice)

    def _clear(self, argument: str) -> None:
        del argument
        self.conversation.clear()
        self.terminal.notice("Forgotten.")

    def _undo(self, argument: str) -> None:
        del argument
        text = self.conversation.undo()
        self.terminal.notice("Nothing was said yet." if text is None else f"Taken back: {text}")

    def _system(self, argument: str) -> None:
        self.conversation.set_system(argument or None)
        self.terminal.notice("The system message is set." if argument else "There is no system message now.")

    def _set(self, argument: str) -> None:
        options = with_settings(self.conversation.options, parse_settings(argument))
        # Ranges are checked now, and not at the next message.
        options.sampling.over(self.conversation.model.defaults.sampling)
        if options.max_new_tokens < 1:
            message = f"The setting max_new_tokens cannot be {options.max_new_tokens}: ask for at least 1."
            raise UsageError(message)
        self.conversation.options = options
        shown = ((name, json.dumps(value, ensure_ascii=False)) for name, value in settings_of(options).items())
        self.terminal.notice(", ".join(f"{name}={value}" for name, value in shown))

    def _spec(self, argument: str) -> None:
        conversation = self.conversation
        if argument == "compare":
            self._compare()
        elif argument in ("on", "off"):
            conversation.speculating = argument == "on"
            plan = conversation.model.plan.describe() if conversation.speculating else "plain decoding"
            self.terminal.notice(f"Decoding with: {plan}.")
        else:
            found = f"not {argument!r}" if argument else "such as /spec off"
            message = f"/spec takes on, off or compare, {found}."
            raise UsageError(message)

    def _compare(self) -> None:
        try:
            plain = self.conversation.plain_again()
        except KeyboardInterrupt:
            self.terminal.notice("Stopped.")
            return
        last = self.conversation.last
        if plain is None or last is None:
            self.terminal.notice("There is no reply to compare with yet.")
        else:
            self.terminal.notice(comparison_line(last, plain))

    def _stats(self, argument: str) -> None:
        del argument
        last = self.conversation.last
        lines = ("There is no reply yet.",) if last is None else detail_lines(last)
        for line in lines:
            self.terminal.notice(line)
        if last is not None:
            self.terminal.notice(f"reused: {self.conversation.num_reused} tokens of the prompt were in the cache")

    def _save(self, argument: str) -> None:
        path = Path(argument or DEFAULT_FILE).expanduser()
        refuse_overlap({"the conversation": path}, self.read)
        self.conversation.save(path)
        self.terminal.notice(f"Saved to {path}.")

    def _load(self, argument: str) -> None:
        if not argument:
            message = "/load needs a file that /save wrote."
            raise UsageError(message)
        self.conversation.load(Path(argument).expanduser())
        self.terminal.notice(f"{len(self.conversation.messages)} messages are loaded.")
