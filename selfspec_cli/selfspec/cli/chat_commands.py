"""What a line typed into a chat means; nothing here acts."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from selfspec_runtime.errors import UsageError

HELP = {
    "help": "show this list",
    "exit": "leave (also Ctrl-D)",
    "clear": "forget everything but the system message",
    "retry": "replace the last reply by another one",
    "undo": "take the last message and its reply back",
    "system TEXT": "set the system message; without TEXT remove it",
    "set NAME=VALUE ...": "change settings, such as /set temperature=0.7 seed=3; without any show them",
    "spec on|off|compare": "use the plan or not, or decode the last prompt plainly too and compare the speed",
    "stats": "show the counts of the last reply",
    "save [FILE]": "write the conversation (chat.json); it can be used as a prompt file",
    "load FILE": "go on with a saved conversation",
}
NAMES = tuple(usage.split()[0] for usage in HELP)
ALIASES = {"quit": "exit", "bye": "exit", "q": "exit", "?": "help", "h": "help", "status": "stats"}

_ASSIGNMENT = re.compile(r"""(\w[\w-]*)\s*=\s*("(?:[^"\\]|\\.)*"|\[[^\]]*\]|\S+)""")


@dataclass(frozen=True)
class Say:
    """A message for the model.

    Attributes:
        text: The message.
    """

    text: str


@dataclass(frozen=True)
class Command:
    """Something to do.

    Attributes:
        name: One of `NAMES`.
        argument: The rest of the line.
    """

    name: str
    argument: str = ""


@dataclass(frozen=True)
class Unknown:
    """A command that there is not; it is never sent to the model.

    Attributes:
        name: What was typed.
    """

    name: str


Input = Say | Command | Unknown


def parse_line(line: str) -> Input | None:
    """Reads one line.

    Args:
        line: As typed. ``/`` or ``!`` begins a command; ``//`` and ``!!`` begin a message with that character.

    Returns:
        What it means, or None for an empty line.
    """
    text = line.strip()
    if not text:
        return None
    if text[:2] in ("//", "!!"):
        return Say(text[1:])
    if text[0] not in "/!":
        return Say(line.rstrip("\r\n"))
    name, *rest = text[1:].split(maxsplit=1) if text[1:2].strip() else [""]
    known = ALIASES.get(name.lower(), name.lower())
    return Command(known, "".join(rest)) if known in NAMES else Unknown(text.split()[0])


def parse_settings(argument: str) -> dict[str, Any]:
    """Reads ``temperature=0.7 stop="a b"``.

    Args:
        argument: Assignments; values are JSON, or words where they are none.

    Returns:
        Values by name; names may be written with ``-`` or ``_``.

    Raises:
        UsageError: It is something else.
    """
    settings = {match[1].replace("-", "_"): _value(match[2]) for match in _ASSIGNMENT.finditer(argument)}
    if _ASSIGNMENT.sub("", argument).strip(" ,"):
        message = f"{argument!r} is not understood. Write /set temperature=0.7 or several of these."
        raise UsageError(message)
    return settings


def help_text() -> str:
    """The list of commands."""
    width = max(len(usage) for usage in HELP)
    lines = [f"  /{usage:<{width}}  {meaning}" for usage, meaning in HELP.items()]
    return "\n".join([*lines, "A message that begins with / is written with //. Ctrl-C stops a reply."])


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return {"none": None, "true": True, "false": False}.get(text.lower(), text.rstrip(","))
