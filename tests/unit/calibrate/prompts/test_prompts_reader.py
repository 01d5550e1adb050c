"""Rows of every kind of file, and the field that names the prompt."""

from __future__ import annotations

import csv
import json

import pytest
from tests.support.prompt_files import ROWS, Folder, asked, lines

from selfspec_calibrate.prompts.prompt import Message
from selfspec_calibrate.prompts.reader import read_prompts
from selfspec_runtime.errors import PromptFileError

JSON_FILES = {
    "lines": lines(*ROWS),
    "lines with a final newline": lines(*ROWS) + "\n",
    "blank lines": "\n\n" + lines(*ROWS).replace("\n", "\n \t\n\n"),
    "carriage returns": lines(*ROWS).replace("\n", "\r\n"),
    "array": json.dumps(ROWS),
    "pretty array": json.dumps(ROWS, indent=2),
    "array of one-line objects": "[\n" + ",\n".join(json.dumps(row) for row in ROWS) + "\n]",
    "array that opens on its first row": "[" + ",\n".join(json.dumps(row) for row in ROWS) + "]",
    "trailing comma": json.dumps(ROWS)[:-1] + ",]",
    "array of strings": json.dumps(["one", "two", "three"]),
    "strings per line": lines("one", "two", "three"),
    "wrapper": json.dumps({"data": ROWS}),
    "pretty wrapper": json.dumps({"version": 1, "anything": ROWS, "tags": []}, indent=1),
    "wrapper of strings": json.dumps({"prompts": ["one", "two", "three"]}),
    "viewer": json.dumps({"features": [{"name": "prompt"}], "rows": [{"row_idx": 0, "row": row} for row in ROWS]}),
    "pretty objects one after another": "\n".join(json.dumps(row, indent=2) for row in ROWS),
    "arrays one after another": "".join(json.dumps([row], indent=2) for row in ROWS),
    "rows of different keys": lines({"prompt": "one"}, {"question": "two", "n": None}, {"instruction": "three"}),
    "nulls for absent keys": lines(*({"messages": None, "text": None, **row} for row in ROWS)),
}


@pytest.mark.parametrize("name", ["data.jsonl", "data.json", "data"])
@pytest.mark.parametrize("form", JSON_FILES)
def test_json_is_read_whatever_its_form_and_name(write: Folder, form: str, name: str) -> None:
    assert asked(read_prompts(write(name, JSON_FILES[form]))) == ["one", "two", "three"]


def test_one_object_is_one_prompt(write: Folder) -> None:
    found = read_prompts(write("data.json", json.dumps({"prompt": "one", "data": ["not", "rows"]}, indent=2)))

    assert asked(found) == ["one"]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("key", ["role", "from"])
def test_array_of_turns_is_one_conversation(write: Folder, key: str, indent: int | None) -> None:
    turns = [{key: "user", "content": "one"}, {key: "assistant", "content": "x"}, {key: "user", "content": "two"}]

    found = read_prompts(write("data.json", json.dumps(turns, indent=indent)))

    assert asked(found) == ["two"]
    assert [(prompt.shape, prompt.line) for prompt in found.prompts] == [("list", 1)]


def test_json_lines_named_txt_are_json(write: Folder) -> None:
    assert asked(read_prompts(write("data.txt", lines(*ROWS)))) == ["one", "two", "three"]


def test_text_has_one_prompt_per_line(write: Folder) -> None:
    found = read_prompts(write("data.txt", "{name} is what?\r\n\r\n[1] and  two \n\u2028three\u2028four"))

    assert asked(found) == ["{name} is what?", "[1] and  two ", "\u2028three\u2028four"]
    assert [prompt.line for prompt in found.prompts] == [1, 3, 4]
    assert {prompt.shape for prompt in found.prompts} == {"string"}


def test_lines_of_array_elements_are_found(write: Folder) -> None:
    found = read_prompts(write("data.json", json.dumps(ROWS, indent=2)))

    assert [prompt.line for prompt in found.prompts] == [2, 5, 8]


@pytest.mark.parametrize("value", ["00456", "2024-01-01", "NA", "null", "1e5", "True"])
def test_text_that_looks_like_a_number_stays_text(write: Folder, value: str) -> None:
    assert asked(read_prompts(write("a.jsonl", lines({"prompt": value})))) == [value]
    assert asked(read_prompts(write("a.csv", f"id,prompt\n00123,{value}\n"))) == [value]


def test_content_may_be_text_in_one_row_and_parts_in_the_next(write: Folder) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    rows = [{"messages": [{"role": "user", "content": content}]} for content in ("plain", parts)]

    found = read_prompts(write("a.jsonl", lines(*rows)))

    assert asked(found) == ["plain", "a\nb"]
    assert found.normalised == {"content parts joined": 1}


def test_tool_arguments_of_any_keys_are_no_trouble(write: Folder) -> None:
    rows = [{"prompt": name, "tools": [{"name": "f", "arguments": {name: 1}}]} for name in ("x", "y")]

    found = read_prompts(write("a.jsonl", lines(*rows)))

    assert asked(found) == ["x", "y"]
    assert found.normalised == {"tools left out": 2}


def test_lone_surrogates_are_replaced_and_counted(write: Folder) -> None:
    rows = ['{"prompt": "a\\ud83d"}', '{"prompt": "b\\ud83d\\ude00"}', '{"text": "\\udc00c", "kind": "k\\ud800"}']

    found = read_prompts(write("a.jsonl", "\n".join(rows)))

    assert asked(found) == ["a\ufffd", "b\U0001f600", "\ufffdc"]
    assert found.normalised == {"lone surrogates replaced": 2}
    assert found.prompts[2].kind == "k\ufffd"


def test_line_of_12_megabytes_is_read(write: Folder) -> None:
    long = "word " * 2_400_000

    assert asked(read_prompts(write("a.jsonl", lines({"prompt": long}, {"prompt": "b"})))) == [long, "b"]
    assert asked(read_prompts(write("a.csv", f"prompt\n{long}\n"))) == [long]
    assert csv.field_size_limit() == 131072


def test_duplicates_are_dropped_and_counted(write: Folder) -> None:
    rows = [{"prompt": "a"}, {"messages": [{"role": "user", "content": "a"}]}, {"text": "a"}, {"prompt": "a "}]

    found = read_prompts(write("a.jsonl", lines(*rows)))

    assert [(prompt.line, prompt.shape) for prompt in found.prompts] == [(1, "prompt"), (3, "text"), (4, "prompt")]
    assert found.skipped == {"duplicate": 1}
    assert found.shapes == {"prompt": 2, "text": 1}


def test_prompt_field_names_the_prompt(write: Folder) -> None:
    rows = [
        {"prompt": "wrong", "ask": "one", "system": "Be brief."},
        {"ask": [{"role": "user", "content": "two"}]},
        {"ask": None},
    ]

    found = read_prompts(write("a.jsonl", lines(*rows)), prompt_field="ask")

    assert asked(found) == ["one", "two"]
    assert found.prompts[0].messages == (Message("system", "Be brief."), Message("user", "one"))
    assert found.skipped == {"empty prompt": 1}
    assert found.shapes == {"field": 2}


def test_prompt_field_is_not_its_own_system_turn(write: Folder) -> None:
    found = read_prompts(write("a.jsonl", lines({"instructions": "one"})), prompt_field="instructions")

    assert found.prompts[0].messages == (Message("user", "one"),)


def test_prompt_field_reaches_into_a_wrapper_but_not_past_itself(write: Folder) -> None:
    wrapped = write("a.json", json.dumps({"data": [{"ask": "one"}, {"ask": "two"}]}))
    assert asked(read_prompts(wrapped, prompt_field="ask")) == ["one", "two"]

    single = write("b.json", json.dumps({"ask": "one", "data": [{"ask": "two"}]}))
    assert asked(read_prompts(single, prompt_field="ask")) == ["one"]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"a": 1, "b": 2}, r"there is no field \"ask\"; the row has the fields 'a', 'b'\. Correct --prompt-field"),
        ({"ask": 3}, r"the field \"ask\" is a number\. Name a field that holds text"),
        ("plain", r"there is no field \"ask\"; the row has no fields, it is text"),
    ],
)
def test_wrong_prompt_field_is_said(write: Folder, row: object, reason: str) -> None:
    with pytest.raises(PromptFileError, match=reason):
        read_prompts(write("a.jsonl", lines(row)), prompt_field="ask")


def test_equal_rows_are_kept_where_all_are_to_be_answered(write: Folder) -> None:
    path = write("data.jsonl", lines({"text": "a"}, {"text": " "}, {"text": "a"}))
    once, all_rows = read_prompts(path), read_prompts(path, keep_duplicates=True)
    assert [prompt.line for prompt in once.prompts] == [1]
    assert once.left_out == (f"{path}:2: empty prompt", f"{path}:3: duplicate")
    assert [prompt.line for prompt in all_rows.prompts] == [1, 3]
    assert all_rows.left_out == (f"{path}:2: empty prompt",)
