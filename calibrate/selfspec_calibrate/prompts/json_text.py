"""Strict JSON parsing whose errors name the line."""

from __future__ import annotations

import json
from collections import Counter

from selfspec_calibrate.prompts.place import Place

CORRECT = "Correct the line"

_SPACE = " \t\r\n"


def parse_json(text: str, place: Place) -> object:
    """Parse one JSON text strictly.

    Args:
        text: The JSON text.
        place: Where it stands.

    Returns:
        The value. Of an object, every key is given once.

    Raises:
        PromptFileError: The text is not valid JSON, nested too deeply, or gives a key twice.
    """
    value, end = parse_at(text, skip_space(text, 0), place)
    if skip_space(text, end) < len(text):
        raise place.error(f"not valid JSON: more text follows the value in column {end + 1}", CORRECT)
    return value


def parse_at(text: str, position: int, place: Place) -> tuple[object, int]:
    """Parse the JSON value that starts at a position.

    Args:
        text: Text with a JSON value in it.
        position: Where the value starts, in characters.
        place: The line of that position.

    Returns:
        The value, and the position after it.

    Raises:
        PromptFileError: As :func:`parse_json`.
    """
    try:
        value, end = _DECODER.raw_decode(text, position)
    except json.JSONDecodeError as error:
        at = Place(place.path, place.line + text.count("\n", position, error.pos), place.item)
        raise at.error(f"not valid JSON: {error.msg} in column {error.colno}", _remedy(error)) from error
    except RecursionError as error:
        raise place.error("the JSON is nested too deeply", "Flatten the row") from error
    except ValueError as error:
        raise place.error(f"not valid JSON: {error}", CORRECT) from error
    return value, end


def skip_space(text: str, position: int) -> int:
    """Return the first position, from a given one, that does not hold JSON white space."""
    while position < len(text) and text[position] in _SPACE:
        position += 1
    return position


def _remedy(error: json.JSONDecodeError) -> str:
    if error.msg.startswith(("Unterminated string", "Invalid control character")):
        return "Write a line break inside a string as \\n"
    return CORRECT


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice!r} is given twice")
    return fields


_DECODER = json.JSONDecoder(object_pairs_hook=_unique)
