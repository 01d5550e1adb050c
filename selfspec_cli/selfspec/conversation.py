"""A conversation: messages, and a key/value cache that is kept from turn to turn."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from selfspec.conversation_file import read_conversation_file, write_conversation_file
from selfspec.prefix_cache import PrefixCache
from selfspec.request import GenerationOptions, Request
from selfspec.result import Result
from selfspec_calibrate.prompts.prompt import Message
from selfspec_runtime.decoder import RunRecord
from selfspec_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from selfspec.model import SpeculativeModel
    from selfspec_runtime.step import SpeculativeStep


class Conversation:
    """Talks with a model; what the cache holds of earlier turns, the system message included, is not run again.

    Args:
        model: The model with its plan.
        system: What it is told first, or None.
        options: How replies are generated; may be replaced between turns.

    Attributes:
        messages: Everything said so far, the system message included.
        options: How replies are generated.
        speculating: Whether the plan is used; without it decoding is plain.
        last: The latest reply, also where it was interrupted; None before the first.
        num_reused: Tokens of the latest prompt that the cache held already.
    """

    def __init__(
        self, model: SpeculativeModel, *, system: str | None = None, options: GenerationOptions | None = None
    ) -> None:
        self.model = model
        self.options = options or GenerationOptions()
        self.messages: tuple[Message, ...] = ()
        self.speculating = True
        self.last: Result | None = None
        self.num_reused = 0
        self._prefix = PrefixCache(model.engine.target)
        self._num_retries = 0
        self.set_system(system if system is not None else self.options.system)

    @property
    def system(self) -> str | None:
        """The system message, or None."""
        return self.messages[0].content if self.messages and self.messages[0].role == "system" else None

    def set_system(self, text: str | None) -> None:
        """Replaces the system message; what was said stays."""
        rest = self.messages[self.system is not None :]
        self.messages = (Message("system", text), *rest) if text else rest

    def say(self, text: str) -> Result:
        """Says something and waits for the whole reply; errors as for :meth:`stream`."""
        with closing(self.stream(text)) as steps:
            for _ in steps:
                pass
        assert self.last is not None
        return self.last

    def stream(self, text: str) -> Generator[SpeculativeStep]:
        """Says something and yields the reply round by round.

        Where the reply is cut short, by an exception or because nobody takes the next step, what came so far stays in
        the conversation; where nothing came, the conversation is as it was. Close the iterator to end a reply.

        Args:
            text: The user's message.

        Raises:
            UsageError: The message is empty, or the chat template refuses the conversation.
            CapacityError: The conversation fills the model's context.
        """
        if not text.strip():
            message = "The message is empty. Say something."
            raise UsageError(message)
        self._num_retries = 0
        return self._reply((*self.messages, Message("user", text)))

    def retry(self) -> Generator[SpeculativeStep]:
        """Replaces the latest reply by another one, with another seed.

        Raises:
            UsageError: Nothing was said yet.
        """
        if not self._turns():
            message = "There is no reply to replace yet."
            raise UsageError(message)
        self._num_retries += 1
        return self._reply(self.messages[: self._turns()[-1] + 1])

    def undo(self) -> str | None:
        """Takes the latest message and its reply back.

        Returns:
            The user's message, or None where nothing was said yet.
        """
        if not self._turns():
            return None
        last = self._turns()[-1]
        text = self.messages[last].content
        self.messages = self.messages[:last]
        return text

    def clear(self) -> None:
        """Forgets everything but the system message."""
        self.messages = self.messages[: self.system is not None]
        self.last = None

    def plain_again(self) -> Result | None:
        """Decodes the latest reply's prompt once more without the plan, as many tokens, for comparison."""
        if self.last is None:
            return None
        settings = replace(self._last_request.settings, max_new_tokens=max(len(self.last.token_ids), 1))
        return self.model.run(replace(self._last_request, settings=settings), engine=self.model.plain_engine)

    def save(self, path: Path) -> None:
        """Writes messages and settings; the file can be used as a prompt file.

        Raises:
            SelfspecError: The file cannot be written.
        """
        write_conversation_file(path, self.messages, self.options)

    def load(self, path: Path) -> None:
        """Goes on with a saved conversation and its settings.

        Raises:
            UsageError: The file is not a conversation.
        """
        self.messages, self.options = read_conversation_file(path, self.options)
        self.last = None

    def _turns(self) -> list[int]:
        return [index for index, message in enumerate(self.messages) if message.role == "user"]

    def _reply(self, messages: tuple[Message, ...]) -> Generator[SpeculativeStep]:
        sampling = replace(self.options.sampling, seed=self.options.sampling.seed + self._num_retries)
        request = self.model.request(messages, replace(self.options, sampling=sampling, system=None))
        return self._steps(messages, request)

    def _steps(self, messages: tuple[Message, ...], request: Request) -> Generator[SpeculativeStep]:
        engine = self.model.engine if self.speculating else self.model.plain_engine
        cache, record, steps = self._prefix.reuse(request.prompt_ids), RunRecord(), []
        self.num_reused = cache.length
        try:
            for step in self.model.steps(request, engine=engine, cache=cache, record=record):
                self._prefix.extend(step.token_ids)
                steps.append(step)
                yield step
        finally:
            if steps:
                self._last_request = request
                self.last = Result.of(request, steps, record)
                self.messages = (*messages, Message("assistant", self.last.text))
