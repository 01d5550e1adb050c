"""A prompt: what is given to the model once, either as a conversation or as raw text."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from selfspec_runtime.errors import UsageError

_ID_DIGITS = 16


@dataclass(frozen=True)
class Message:
    """One turn of a conversation.

    Args:
        role: ``system``, ``user`` or ``assistant``; a template may know others.
        content: The text of the turn. Never a list of parts: a template would print its Python form.

    Raises:
        UsageError: The content is not text.
    """

    role: str
    content: str

    def __post_init__(self) -> None:
        if not isinstance(self.content, str):
            found = type(self.content).__name__
            raise UsageError(
                f"A {self.role} turn has a content of type {found}, which no template can print as text. "
                "Give the content as one string."
            )


@dataclass(frozen=True)
class Prompt:
    """One usable row of a prompt file.

    Args:
        id: Stable hash of the content; equal content has an equal id in any file.
        kind: What the row is about; search and held-out prompts are split within each kind.
        messages: The conversation to render with the chat template, or None.
        text: The text to complete without a template, or None.
        line: Line of the file on which the row starts, from 1.
        shape: The name of the shape that the row was recognised as.

    Raises:
        UsageError: Both or none of ``messages`` and ``text`` are given.
    """

    id: str
    kind: str
    messages: tuple[Message, ...] | None
    text: str | None
    line: int
    shape: str

    def __post_init__(self) -> None:
        if (self.messages is None) == (self.text is None):
            raise UsageError(f"The prompt of line {self.line} holds messages and text, or neither. Give exactly one.")


def prompt_id(*, messages: tuple[Message, ...] | None = None, text: str | None = None) -> str:
    """Hash what the model gets to see, and nothing else.

    Args:
        messages: The conversation, or None.
        text: The raw text, or None.

    Returns:
        The first 16 hexadecimal digits of a SHA-256 sum.
    """
    content = text if messages is None else [[turn.role, turn.content] for turn in messages]
    canonical = json.dumps(content, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()[:_ID_DIGITS]
