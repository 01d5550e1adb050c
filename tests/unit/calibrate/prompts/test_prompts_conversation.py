"""Conversations as data sets write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from selfspec_calibrate.prompts.conversation import Conversation, Skip, read_content, read_conversation
from selfspec_calibrate.prompts.place import Place
from selfspec_calibrate.prompts.prompt import Message
from selfspec_runtime.errors import PromptFileError, UsageError

PLACE = Place(Path("data.jsonl"), 7)
USER = Message("user", "u")
ANSWER = Message("assistant", "a")


def turn(role: str, content: Any = None, **more: object) -> dict[str, Any]:
    return {"role": role, "content": content if content is not None else role[0], **more}


def messages_of(*turns: dict[str, Any]) -> tuple[Message, ...]:
    found = read_conversation(list(turns), PLACE)
    assert isinstance(found, Conversation)
    return found.messages


def test_answers_at_the_end_are_left_out() -> None:
    assert messages_of(turn("user"), turn("assistant"), turn("assistant")) == (USER,)
    assert messages_of(turn("user"), turn("assistant"), turn("user"), turn("assistant")) == (USER, ANSWER, USER)


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("human", "user"),
        ("User ", "user"),
        ("prompter", "user"),
        ("gpt", "assistant"),
        ("bot", "assistant"),
        ("model", "assistant"),
        ("system", "system"),
        ("developer", "system"),
    ],
)
def test_roles_of_other_data_sets(name: str, role: str) -> None:
    found = messages_of(turn(name, "x"), turn("user"))

    assert found == (Message(role, "x"), USER)


def test_developer_turn_is_noted() -> None:
    found = read_conversation([turn("developer", "x"), turn("user")], PLACE)

    assert isinstance(found, Conversation)
    assert found.notes == ("developer turn read as system turn",)


@pytest.mark.parametrize(
    "tail",
    [
        [turn("tool", "42")],
        [turn("assistant", tool_calls=[{"id": "1"}]), turn("tool", "42"), turn("assistant")],
        [turn("assistant", function_call={"name": "f"}), turn("function", "42"), turn("user", "and?")],
        [{"from": "function_call", "value": "{}"}, {"from": "observation", "value": "42"}],
    ],
)
def test_conversation_ends_before_the_first_tool_turn(tail: list[dict[str, Any]]) -> None:
    found = read_conversation([turn("user"), *tail], PLACE)

    assert found == Conversation((USER,), notes=("cut before the first tool turn",))


@pytest.mark.parametrize("turns", [[], [turn("system")], [turn("assistant")], [turn("tool"), turn("user")]])
def test_no_user_turn_is_skipped(turns: list[dict[str, Any]]) -> None:
    assert read_conversation(turns, PLACE) == Skip("no user turn")


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:"}},
        {"type": "input_audio", "input_audio": {}},
        {"type": "text", "text": None},
        {"type": "image", "text": "alt"},
        42,
    ],
)
def test_image_or_audio_part_skips_the_row_unless_it_is_in_the_answer(part: object) -> None:
    mixed = [{"type": "text", "text": "u"}, part]

    assert read_conversation([turn("user", mixed)], PLACE) == Skip("image or audio")
    assert messages_of(turn("user"), turn("assistant", [part])) == (USER,)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("a", "a"),
        ([], ""),
        ([{"type": "text", "text": "a"}], "a"),
        ([{"type": "input_text", "text": "a"}, {"text": "b"}, "c"], "a\nb\nc"),
    ],
)
def test_content_becomes_text(content: object, text: str) -> None:
    assert read_content(content, PLACE) == text


@pytest.mark.parametrize(("content", "kind"), [({"a": 1}, "an object"), (3, "a number"), (True, "a truth value")])
def test_other_content_is_an_error(content: object, kind: str) -> None:
    with pytest.raises(PromptFileError, match=rf"^data\.jsonl:7: the content of a turn is {kind}\. Give it as text\.$"):
        read_content(content, PLACE)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"role": "user"}, "text or a list of turns was expected, not an object"),
        (["hello"], "a turn is text"),
        ([None], "a turn is null"),
        ([{"role": 3, "content": "x"}], "a turn has the role 3"),
        ([{"role": "\ud800" + "x" * 99, "content": "x"}], r"a turn has the role '\\ud800x{33}\."),
    ],
)
def test_what_is_no_conversation_is_an_error(value: object, reason: str) -> None:
    with pytest.raises(PromptFileError, match=rf"^data\.jsonl:7: {reason}"):
        read_conversation(value, PLACE)


def test_message_content_is_never_a_list() -> None:
    parts: Any = [{"type": "text", "text": "a"}]

    with pytest.raises(UsageError, match="content of type list, which no template can print"):
        Message("user", parts)
