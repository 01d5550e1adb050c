"""Conversations as data sets write them, brought to the messages that a chat template takes."""

from __future__ import annotations

from dataclasses import dataclass

from selfspec_calibrate.prompts.place import Place
from selfspec_calibrate.prompts.prompt import Message

NO_USER_TURN = "no user turn"
EMPTY_PROMPT = "empty prompt"
NOT_TEXT = "image or audio"

_ROLES = {
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "system": "system",
    "developer": "system",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "function_call": "tool",
    "tool_call": "tool",
}
_TEXT_PARTS = ("text", "input_text", "output_text")


@dataclass(frozen=True)
class Skip:
    """A row that is well formed and yet no prompt.

    Args:
        reason: Why it is left out, in a few words; rows are counted by it.
    """

    reason: str


@dataclass(frozen=True)
class Conversation:
    """The part of a conversation that the model has to answer.

    Args:
        messages: System, user and assistant turns; at least one of the user, and no answer at the end.
        notes: What was changed on the way, in a few words each.
    """

    messages: tuple[Message, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Turn:
    role: str
    name: str
    content: object
    calls_tools: bool


def read_conversation(value: object, place: Place) -> Conversation | Skip:
    """Convert a list of turns, with ``role``/``content`` or ``from``/``value``, also mixed.

    Answers at the end are left out, since the model is to give them. Tool turns need the calls before them,
    which a plain message cannot hold; so the conversation ends before the first of them.

    Args:
        value: The list of turns.
        place: Where the row stands.

    Returns:
        The conversation, or why the row is no prompt.

    Raises:
        PromptFileError: The value is not a list of turns.
    """
    if not isinstance(value, list):
        raise place.error(f"text or a list of turns was expected, not {kind_of(value)}", "Correct the row")
    turns = [_read_turn(turn, place) for turn in value]
    asked = _asked(turns)
    if not any(turn.role == "user" for turn in asked):
        return Skip(NO_USER_TURN)
    read = [(turn.role, read_content(turn.content, place)) for turn in asked]
    messages = tuple(Message(role, text) for role, text in read if text is not None)
    if len(messages) < len(read):
        return Skip(NOT_TEXT)
    if not [message for message in messages if message.role == "user"][-1].content.strip():
        return Skip(EMPTY_PROMPT)
    return Conversation(messages, _notes(turns, asked))


def read_content(value: object, place: Place) -> str | None:
    """Convert a turn's content to text.

    Args:
        value: Text, None (a turn that only calls tools), or a list of parts, which are joined by line breaks.
        place: Where the row stands.

    Returns:
        The text; None if a part is an image, a sound or a file.

    Raises:
        PromptFileError: The content is of another type.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise place.error(f"the content of a turn is {kind_of(value)}", "Give it as text")
    parts = [_read_part(part) for part in value]
    texts = [part for part in parts if part is not None]
    return "\n".join(texts) if len(texts) == len(parts) else None


def kind_of(value: object) -> str:
    """Name a JSON value's type for a message."""
    names: dict[type, str] = {dict: "an object", list: "a list", str: "text", bool: "a truth value"}
    if value is None:
        return "null"
    return names.get(type(value), "a number")


def _read_turn(value: object, place: Place) -> _Turn:
    if not isinstance(value, dict):
        raise place.error(f"a turn is {kind_of(value)}", 'Write it as {"role": ..., "content": ...}')
    name = _first(value, ("role", "from"))
    role = _ROLES.get(name.strip().lower()) if isinstance(name, str) else None
    if not isinstance(name, str) or role is None:
        raise place.error(f"a turn has the role {name!r:.40}", "The roles are system, user and assistant")
    content = _first(value, ("content", "value", "text"))
    return _Turn(role, name, content, bool(value.get("tool_calls") or value.get("function_call")))


def _first(fields: dict[str, object], keys: tuple[str, ...]) -> object:
    return next((fields[key] for key in keys if fields.get(key) is not None), None)


def _asked(turns: list[_Turn]) -> list[_Turn]:
    tools = (index for index, turn in enumerate(turns) if turn.role == "tool" or turn.calls_tools)
    asked = turns[: next(tools, len(turns))]
    while asked and asked[-1].role == "assistant":
        asked = asked[:-1]
    return asked


def _read_part(part: object) -> str | None:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict) or part.get("type", "text") not in _TEXT_PARTS:
        return None
    text = part.get("text")
    return text if isinstance(text, str) else None


def _notes(turns: list[_Turn], asked: list[_Turn]) -> tuple[str, ...]:
    found = {
        "cut before the first tool turn": any(turn.role == "tool" or turn.calls_tools for turn in turns),
        "developer turn read as system turn": any(turn.name.strip().lower() == "developer" for turn in asked),
        "content parts joined": any(isinstance(turn.content, list) for turn in asked),
    }
    return tuple(note for note, applies in found.items() if applies)
