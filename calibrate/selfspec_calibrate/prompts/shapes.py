"""The shapes that rows of prompt files have, recognised row by row, since files mix them."""

from __future__ import annotations

import re
from dataclasses import replace

from selfspec_calibrate.prompts.conversation import EMPTY_PROMPT, NOT_TEXT, Skip, kind_of
from selfspec_calibrate.prompts.detectors import DETECTORS, PROMPT_KEYS, Fields
from selfspec_calibrate.prompts.place import Row
from selfspec_calibrate.prompts.prompt import Message
from selfspec_calibrate.prompts.shaped import Shaped, ask

_KIND_KEYS = ("category", "kind", "task")
_INNER_KEYS = ("row", "body")
_SYSTEM_KEYS = ("system", "system_prompt", "instructions")
_MEDIA_KEYS = ("image", "images", "audio", "audios", "video", "videos")
_ASIDE_KEYS = ("tools", "chat_template_kwargs")
_MAX_KEYS = 20
_SURROGATE = re.compile("[\ud800-\udfff]")


def shape_row(row: Row, *, prompt_field: str | None = None) -> Shaped | Skip:
    """Recognise one row; the first shape that matches wins.

    Args:
        row: The row.
        prompt_field: The field that holds the prompt; no shape is tried then.

    Returns:
        What the row asks, or why it is left out.

    Raises:
        PromptFileError: No shape matches, or the row is broken.
    """
    found = _detect(row) if prompt_field is None else _chosen_field(row, prompt_field)
    if found is None:
        reason = f"no known shape of prompt; the row has {_keys(row.value)}"
        raise row.place.error(reason, "Name the field of the prompt with --prompt-field")
    return found if isinstance(found, Skip) else _without_surrogates(found)


def has_shape(row: Row, *, prompt_field: str | None = None) -> bool:
    """Tell whether a row's keys are those of a shape, whatever they hold.

    Args:
        row: The row.
        prompt_field: The field that holds the prompt; it makes a shape of its own.

    Returns:
        False for an object of other keys only, such as one that wraps the rows.
    """
    if not isinstance(row.value, dict):
        return True
    return prompt_field in row.value or _has_prompt_key(row.value)


def row_kind(row: Row, shaped: Shaped) -> str:
    """Return the row's category, within which prompts are split and reported.

    Args:
        row: The row.
        shaped: What it was recognised as.

    Returns:
        The text of its field ``category``, ``kind`` or ``task``; else the name of its shape.
    """
    fields = _fields(row.value)
    named = (fields.get(key) for key in _KIND_KEYS)
    kinds = (_SURROGATE.sub("\ufffd", kind).strip() for kind in named if isinstance(kind, str))
    return next((kind for kind in kinds if kind), shaped.shape)


def _has_prompt_key(value: object) -> bool:
    return not PROMPT_KEYS.isdisjoint(_lifted(value))


def _detect(row: Row) -> Shaped | Skip | None:
    if isinstance(row.value, str):
        return ask(row.value, row.place, shape="string")
    if isinstance(row.value, list):
        return ask(row.value, row.place, shape="list")
    fields = _fields(row.value)
    tried = (detector(fields, row.place) for detector in DETECTORS)
    found = next((shaped for shaped in tried if shaped is not None), None)
    if found is None and _has_prompt_key(row.value):
        return Skip(EMPTY_PROMPT)
    if found is not None and any(fields.get(key) for key in _MEDIA_KEYS):
        return Skip(NOT_TEXT)
    return _complete(found, fields) if isinstance(found, Shaped) else found


def _chosen_field(row: Row, prompt_field: str) -> Shaped | Skip:
    if not isinstance(row.value, dict) or prompt_field not in row.value:
        reason = f'there is no field "{prompt_field}"; the row has {_keys(row.value)}'
        raise row.place.error(reason, "Correct --prompt-field")
    value = row.value[prompt_field]
    if value is not None and not isinstance(value, str | list):
        reason = f'the field "{prompt_field}" is {kind_of(value)}'
        raise row.place.error(reason, "Name a field that holds text")
    found = ask(value or "", row.place, shape="field")
    others = {key: field for key, field in _fields(row.value).items() if key != prompt_field.strip().lower()}
    return _complete(found, others) if isinstance(found, Shaped) else found


def _fields(value: object) -> dict[str, object]:
    return {key: field for key, field in _lifted(value).items() if field is not None}


def _lifted(value: object) -> dict[str, object]:
    """Lower the keys, and lift the fields of an inner ``row`` or ``body`` to the top."""
    fields = _lowered(value)
    for key in _INNER_KEYS:
        fields |= _lowered(fields.get(key))
    return fields


def _lowered(value: object) -> dict[str, object]:
    return {key.strip().lower(): field for key, field in value.items()} if isinstance(value, dict) else {}


def _complete(shaped: Shaped, fields: Fields) -> Shaped:
    """Add what the row says beside its prompt: the system turn, and what is left out."""
    aside = tuple(f"{key} left out" for key in _ASIDE_KEYS if fields.get(key))
    texts = (text for key in _SYSTEM_KEYS if isinstance(text := fields.get(key), str))
    system = next((text for text in texts if text.strip()), None)
    messages = shaped.messages
    if system and messages and all(message.role != "system" for message in messages):
        messages = (Message("system", system), *messages)
    shape = "batch" if isinstance(fields.get("body"), dict) else shaped.shape
    return replace(shaped, shape=shape, messages=messages, notes=shaped.notes + aside)


def _keys(value: object) -> str:
    if not isinstance(value, dict):
        return f"no fields, it is {kind_of(value)}"
    named = ", ".join(repr(key) for key in list(value)[:_MAX_KEYS])
    return f"the fields {named}" if named else "no fields"


def _without_surrogates(shaped: Shaped) -> Shaped:
    """Replace halves of surrogate pairs: they are no characters, and crash tokenizers."""
    contents = [message.content for message in shaped.messages or ()] + [shaped.text or ""]
    if not any(_SURROGATE.search(content) for content in contents):
        return shaped
    messages = shaped.messages and tuple(
        Message(message.role, _SURROGATE.sub("\ufffd", message.content)) for message in shaped.messages
    )
    text = shaped.text and _SURROGATE.sub("\ufffd", shaped.text)
    return replace(shaped, messages=messages, text=text, notes=(*shaped.notes, "lone surrogates replaced"))
