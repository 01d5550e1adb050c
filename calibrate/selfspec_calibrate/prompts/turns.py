"""What strict chat templates ask of a conversation: no system turn, roles that alternate, a user first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from selfspec_calibrate.prompts.prompt import Message

_BREAK = "\n\n"


def alternate(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Merge adjacent turns of one role, and leave out answers that come before any question.

    Args:
        messages: The conversation.

    Returns:
        The turns, of which no two neighbours have the same role.
    """
    first_user = next((index for index, turn in enumerate(messages) if turn.role == "user"), len(messages))
    kept = [turn for index, turn in enumerate(messages) if index > first_user or turn.role != "assistant"]
    return tuple(_merged(role, list(turns)) for role, turns in groupby(kept, key=lambda turn: turn.role))


def without_system(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Put what the system turns say at the head of the first user turn.

    Args:
        messages: The conversation.

    Returns:
        The conversation without system turns; if it has no user turn, their text becomes one.
    """
    system = [turn for turn in messages if turn.role == "system"]
    others = [turn for turn in messages if turn.role != "system"]
    if not system:
        return tuple(others)
    first = next((index for index, turn in enumerate(others) if turn.role == "user"), None)
    if first is None:
        return (_merged("user", system), *others)
    return (*others[:first], _merged("user", [*system, others[first]]), *others[first + 1 :])


def _merged(role: str, turns: Sequence[Message]) -> Message:
    return Message(role, _BREAK.join(turn.content for turn in turns))
