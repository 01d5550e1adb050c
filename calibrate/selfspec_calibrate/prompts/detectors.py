"""One function for each shape of row: it looks at the keys, and converts the row if they are its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from selfspec_calibrate.prompts.conversation import Skip, kind_of
from selfspec_calibrate.prompts.json_text import parse_json
from selfspec_calibrate.prompts.place import Place
from selfspec_calibrate.prompts.shaped import Shaped, ask, continue_text
from selfspec_runtime.errors import PromptFileError

Fields = Mapping[str, object]
"""A row's fields by lower-case name, without nulls."""

Detector = Callable[[Fields, Place], Shaped | Skip | None]
"""Returns None where the keys are of another shape; raises PromptFileError where a value is broken."""

_QUESTION_KEYS = ("question", "query", "problem", "input", "article")

PROMPT_KEYS = frozenset(
    ("messages", "prompt", "conversations", "conversation", "instruction", *_QUESTION_KEYS, "turns", "text")
)
"""The keys by which the shapes are told apart."""


def detect_messages(fields: Fields, place: Place) -> Shaped | Skip | None:
    """OpenAI chat: ``messages``, a list of turns, or its JSON text in a table."""
    return _turn_list(fields["messages"], place, shape="messages") if "messages" in fields else None


def detect_humaneval(fields: Fields, place: Place) -> Shaped | Skip | None:
    """HumanEval: ``prompt``, the beginning of a program, beside ``canonical_solution`` or ``entry_point``."""
    if "prompt" not in fields or not ("canonical_solution" in fields or "entry_point" in fields):
        return None
    return continue_text(_text_of(fields, "prompt", place), shape="humaneval")


def detect_prompt(fields: Fields, place: Place) -> Shaped | Skip | None:
    """Prompt and completion: ``prompt``, text or a list of turns."""
    return ask(fields["prompt"], place, shape="prompt") if "prompt" in fields else None


def detect_conversations(fields: Fields, place: Place) -> Shaped | Skip | None:
    """ShareGPT: ``conversations``, turns with ``from`` and ``value``, mixed with other spellings."""
    value = fields.get("conversations", fields.get("conversation"))
    return None if value is None else _turn_list(value, place, shape="sharegpt")


def detect_alpaca(fields: Fields, place: Place) -> Shaped | Skip | None:
    """Alpaca and Dolly: ``instruction``, then a blank line and ``input`` or ``context`` if there is one."""
    if "instruction" not in fields:
        return None
    return _join(fields, ("instruction", "input", "context"), place, shape="alpaca")


def detect_question(fields: Fields, place: Place) -> Shaped | Skip | None:
    """Questions, with the ``context`` before them; OpenOrca where there is a ``system_prompt``."""
    key = next((key for key in _QUESTION_KEYS if key in fields), None)
    if key is None:
        return None
    shape = "openorca" if "system_prompt" in fields else "question"
    if isinstance(fields[key], list):
        return ask(fields[key], place, shape=shape)
    return _join(fields, ("context", key), place, shape=shape)


def detect_turns(fields: Fields, place: Place) -> Shaped | Skip | None:
    """MT-bench and Spec-Bench: ``turns``, the user's turns as texts, of which the first is asked."""
    if "turns" not in fields:
        return None
    value = fields["turns"]
    turns = _listed(value, place)
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], str):
        return ask(turns, place, shape="turns")
    first = ask(turns[0], place, shape="turns")
    if isinstance(first, Skip) or len(turns) == 1:
        return first
    return replace(first, notes=(*first.notes, "later turns left out"))


def detect_text(fields: Fields, place: Place) -> Shaped | Skip | None:
    """Documents: ``text``, which is continued without a template."""
    return continue_text(_text_of(fields, "text", place), shape="text") if "text" in fields else None


DETECTORS: tuple[Detector, ...] = (
    detect_messages,
    detect_humaneval,
    detect_prompt,
    detect_conversations,
    detect_alpaca,
    detect_question,
    detect_turns,
    detect_text,
)
"""In the order in which they are tried."""


def _turn_list(value: object, place: Place, *, shape: str) -> Shaped | Skip:
    return ask(_listed(value, place), place, shape=shape)


def _listed(value: object, place: Place) -> object:
    """Turns, or in a table their JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value, place)
    except PromptFileError as error:
        reason = str(error).split(": ", 1)[-1].split(". ")[0]
        message = f"turns are given as text that is {reason}"
        raise place.error(message, 'Give them as a list, or a single turn as "prompt"') from error


def _join(fields: Fields, keys: tuple[str, ...], place: Place, *, shape: str) -> Shaped | Skip:
    texts = (_text_of(fields, key, place) for key in keys)
    return ask("\n\n".join(text for text in texts if text.strip()), place, shape=shape)


def _text_of(fields: Fields, key: str, place: Place) -> str:
    value = fields.get(key, "")
    if not isinstance(value, str):
        raise place.error(f'the field "{key}" is {kind_of(value)}', "Give it as text")
    return value
