"""Every shape of row that is recognised, and what becomes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from selfspec_calibrate.prompts.conversation import Skip
from selfspec_calibrate.prompts.place import Place, Row
from selfspec_calibrate.prompts.prompt import Message
from selfspec_calibrate.prompts.reader import read_prompts
from selfspec_calibrate.prompts.shaped import Shaped
from selfspec_calibrate.prompts.shapes import has_shape, row_kind, shape_row

SYSTEM = Message("system", "S")
USER = Message("user", "U")
ANSWER = Message("assistant", "A")
ASKED = [{"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}]
SHAREGPT = [
    {"from": "system", "value": "S"},
    {"from": "human", "value": "U"},
    {"from": "gpt", "value": "A"},
    {"from": "human", "value": "U"},
    {"from": "gpt", "value": "A"},
]
MIXED = [{"role": "human", "value": "U"}, {"from": "assistant", "content": "A"}, {"role": "user", "text": "U"}]


def row(value: object) -> Row:
    return Row(Place(Path("data.jsonl"), 1), value)


def shaped(value: object) -> Shaped:
    found = shape_row(row(value))
    assert isinstance(found, Shaped)
    return found


CHATS: dict[str, tuple[Any, str, tuple[Message, ...]]] = {
    "messages": ({"messages": ASKED}, "messages", (USER,)),
    "messages of a table": ({"messages": json.dumps(ASKED)}, "messages", (USER,)),
    "system beside messages": ({"messages": ASKED, "system": "S"}, "messages", (SYSTEM, USER)),
    "batch": (
        {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": ASKED}},
        "batch",
        (USER,),
    ),
    "batch of responses": ({"custom_id": "1", "body": {"input": "U", "instructions": "S"}}, "batch", (SYSTEM, USER)),
    "batch of responses with turns": ({"custom_id": "1", "body": {"input": ASKED}}, "batch", (USER,)),
    "bare list": (ASKED, "list", (USER,)),
    "prompt": ({"prompt": "U", "completion": "A"}, "prompt", (USER,)),
    "prompt as turns": ({"prompt": ASKED[:1], "chosen": "A", "rejected": "B"}, "prompt", (USER,)),
    "sharegpt": ({"conversations": SHAREGPT}, "sharegpt", (SYSTEM, USER, ANSWER, USER)),
    "sharegpt with other names": ({"conversation": MIXED}, "sharegpt", (USER, ANSWER, USER)),
    "sharegpt that the model opens": (
        {"conversations": [{"from": "gpt", "value": "A"}, {"from": "human", "value": "U"}]},
        "sharegpt",
        (ANSWER, USER),
    ),
    "alpaca": ({"instruction": "U", "input": "I", "output": "A"}, "alpaca", (Message("user", "U\n\nI"),)),
    "alpaca without input": ({"instruction": "U", "input": "", "output": "A"}, "alpaca", (USER,)),
    "alpaca with system": ({"instruction": "U", "system": "S", "text": "all of it"}, "alpaca", (SYSTEM, USER)),
    "dolly": ({"instruction": "U", "context": "C", "response": "A"}, "alpaca", (Message("user", "U\n\nC"),)),
    "openorca": ({"system_prompt": "S", "question": "U", "response": "A"}, "openorca", (SYSTEM, USER)),
    "openorca without system": ({"system_prompt": "", "question": "U"}, "openorca", (USER,)),
    "question": ({"question": "U", "answer": "A"}, "question", (USER,)),
    "question on a context": ({"context": "C", "question": "U"}, "question", (Message("user", "C\n\nU"),)),
    "query": ({"query": "U", "answers": ["A"]}, "question", (USER,)),
    "input and output": ({"input": "U", "output": "A"}, "question", (USER,)),
    "article": ({"article": "U", "highlights": "A"}, "question", (USER,)),
    "upper case": ({" INSTRUCTION": "U", "RESPONSE": "A"}, "alpaca", (USER,)),
    "one turn": ({"question_id": 1, "turns": ["U"]}, "turns", (USER,)),
    "turns of a table": ({"turns": '["U"]'}, "turns", (USER,)),
    "turns as messages": ({"turns": ASKED}, "turns", (USER,)),
    "viewer row": ({"row_idx": 0, "row": {"prompt": "U"}}, "prompt", (USER,)),
    "string": ("U", "string", (USER,)),
}


@pytest.mark.parametrize("case", CHATS)
def test_chat_shapes(case: str) -> None:
    value, shape, messages = CHATS[case]

    assert shaped(value) == Shaped(shape, messages=messages)
    assert has_shape(row(value))


RAW: dict[str, tuple[Any, str, str]] = {
    "humaneval": (
        {"task_id": "H/0", "prompt": "def f():\n", "canonical_solution": "  pass"},
        "humaneval",
        "def f():\n",
    ),
    "humaneval by its entry point": ({"prompt": "def f():\n", "entry_point": "f"}, "humaneval", "def f():\n"),
    "text": ({"text": " Once upon"}, "text", " Once upon"),
}


@pytest.mark.parametrize("case", RAW)
def test_raw_shapes_get_no_template(case: str) -> None:
    value, shape, text = RAW[case]

    assert shaped(value) == Shaped(shape, text=text)


@pytest.mark.parametrize("head", ["<|im_start|>user\n", "[INST] ", "<s>[INST] ", "\n<start_of_turn>user\n"])
def test_rendered_prompt_is_not_rendered_again(head: str) -> None:
    found = shaped({"prompt": head + "U"})

    assert (found.messages, found.text) == (None, head + "U")
    assert found.notes == ("already rendered, taken as raw text",)
    assert shaped({"prompt": f"What does {head} mean?"}).text is None


def test_later_turns_are_left_out_with_a_note() -> None:
    found = shaped({"question_id": 81, "category": "writing", "turns": ["U", "and then?"], "reference": []})

    assert found == Shaped("turns", messages=(USER,), notes=("later turns left out",))


def test_what_a_row_says_beside_its_prompt_is_noted() -> None:
    found = shaped({"messages": ASKED, "tools": [{}], "chat_template_kwargs": {"enable_thinking": False}})

    assert found.notes == ("tools left out", "chat_template_kwargs left out")
    assert shaped({"messages": ASKED, "tools": [], "chat_template_kwargs": None}).notes == ()


def test_own_system_turn_wins_over_the_field() -> None:
    turns = [{"role": "system", "content": "S"}, *ASKED]

    assert shaped({"messages": turns, "system_prompt": "other"}).messages == (SYSTEM, USER)


@pytest.mark.parametrize("key", ["image", "images", "audio", "videos"])
def test_row_with_media_is_skipped(key: str) -> None:
    assert shape_row(row({"prompt": "U", key: ["x.png"]})) == Skip("image or audio")
    assert shaped({"prompt": "U", key: []}).messages == (USER,)


@pytest.mark.parametrize(
    "value",
    [
        "",
        " \n",
        {"prompt": ""},
        {"prompt": None, "id": 3},
        {"text": " "},
        {"instruction": "", "input": ""},
        {"turns": [""]},
        {"entry_point": "f", "prompt": ""},
        {"row": {"question": None}},
        {"messages": [{"role": "user", "content": "  "}]},
    ],
)
def test_empty_prompt_is_skipped(value: object) -> None:
    assert shape_row(row(value)) == Skip("empty prompt")


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"category": "c", "kind": "k", "task": "t"}, "c"),
        ({"kind": " k ", "task": "t"}, "k"),
        ({"category": 3, "kind": "", "task": "t"}, "t"),
        ({"Category": "c"}, "c"),
        ({"body": {"category": "c"}}, "c"),
        ({"category": None}, "prompt"),
    ],
)
def test_kind_is_the_category_or_the_shape(fields: dict[str, object], kind: str) -> None:
    assert row_kind(row({"prompt": "U", **fields}), Shaped("prompt", messages=(USER,))) == kind


def test_kind_of_a_string_is_its_shape() -> None:
    assert row_kind(row("U"), shaped("U")) == "string"


@pytest.mark.parametrize("value", [{"data": []}, {"foo": "prompt"}, {}])
def test_wrapper_has_no_shape(value: object) -> None:
    assert not has_shape(row(value))
    assert has_shape(row(value), prompt_field="foo") == (value == {"foo": "prompt"})


def test_each_row_is_recognised_by_itself(tmp_path: Path) -> None:
    values = [{**value, "n": 1} if isinstance(value, dict) else value for value, *_ in (CHATS | RAW).values()]
    unique = [json.dumps(value).replace('U"', f'U{number}"') for number, value in enumerate(values)]
    path = tmp_path / "mixed.jsonl"
    path.write_text("\n".join(unique))

    found = read_prompts(path)

    # The second HumanEval row, and the turns within JSON text, ask what rows before them ask.
    assert found.skipped == {"duplicate": 2}
    assert found.shapes["alpaca"] == 5
    assert set(found.shapes) == {shape for _, shape, _ in (CHATS | RAW).values()}
