"""Rows of every kind of file, and the errors of those that are broken."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from selfspec_calibrate.prompts.prompt import Message, Prompt, prompt_id
from selfspec_calibrate.prompts.reader import PromptFile, read_prompts
from selfspec_runtime.errors import PromptFileError, UsageError

Write = Callable[[str, str | bytes], Path]

TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40).filter(lambda text: bool(text.strip()))
FILES = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def _write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return _write


def last_text(prompt: Prompt) -> str:
    return prompt.messages[-1].content if prompt.messages else prompt.text or ""


def asked(found: PromptFile) -> list[str]:
    return [last_text(prompt) for prompt in found.prompts]


def lines(*rows: object) -> str:
    return "\n".join(json.dumps(row) for row in rows)


ROWS = [{"prompt": "one"}, {"prompt": "two"}, {"prompt": "three"}]
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
def test_json_is_read_whatever_its_form_and_name(write: Write, form: str, name: str) -> None:
    assert asked(read_prompts(write(name, JSON_FILES[form]))) == ["one", "two", "three"]


def test_one_object_is_one_prompt(write: Write) -> None:
    found = read_prompts(write("data.json", json.dumps({"prompt": "one", "data": ["not", "rows"]}, indent=2)))

    assert asked(found) == ["one"]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("key", ["role", "from"])
def test_array_of_turns_is_one_conversation(write: Write, key: str, indent: int | None) -> None:
    turns = [{key: "user", "content": "one"}, {key: "assistant", "content": "x"}, {key: "user", "content": "two"}]

    found = read_prompts(write("data.json", json.dumps(turns, indent=indent)))

    assert asked(found) == ["two"]
    assert [(prompt.shape, prompt.line) for prompt in found.prompts] == [("list", 1)]


def test_json_lines_named_txt_are_json(write: Write) -> None:
    assert asked(read_prompts(write("data.txt", lines(*ROWS)))) == ["one", "two", "three"]


def test_text_has_one_prompt_per_line(write: Write) -> None:
    found = read_prompts(write("data.txt", "{name} is what?\r\n\r\n[1] and  two \n\u2028three\u2028four"))

    assert asked(found) == ["{name} is what?", "[1] and  two ", "\u2028three\u2028four"]
    assert [prompt.line for prompt in found.prompts] == [1, 3, 4]
    assert {prompt.shape for prompt in found.prompts} == {"string"}


def test_lines_of_array_elements_are_found(write: Write) -> None:
    found = read_prompts(write("data.json", json.dumps(ROWS, indent=2)))

    assert [prompt.line for prompt in found.prompts] == [2, 5, 8]


@pytest.mark.parametrize("value", ["00456", "2024-01-01", "NA", "null", "1e5", "True"])
def test_text_that_looks_like_a_number_stays_text(write: Write, value: str) -> None:
    assert asked(read_prompts(write("a.jsonl", lines({"prompt": value})))) == [value]
    assert asked(read_prompts(write("a.csv", f"id,prompt\n00123,{value}\n"))) == [value]


def test_content_may_be_text_in_one_row_and_parts_in_the_next(write: Write) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    rows = [{"messages": [{"role": "user", "content": content}]} for content in ("plain", parts)]

    found = read_prompts(write("a.jsonl", lines(*rows)))

    assert asked(found) == ["plain", "a\nb"]
    assert found.normalised == {"content parts joined": 1}


def test_tool_arguments_of_any_keys_are_no_trouble(write: Write) -> None:
    rows = [{"prompt": name, "tools": [{"name": "f", "arguments": {name: 1}}]} for name in ("x", "y")]

    found = read_prompts(write("a.jsonl", lines(*rows)))

    assert asked(found) == ["x", "y"]
    assert found.normalised == {"tools left out": 2}


def test_lone_surrogates_are_replaced_and_counted(write: Write) -> None:
    rows = ['{"prompt": "a\\ud83d"}', '{"prompt": "b\\ud83d\\ude00"}', '{"text": "\\udc00c", "kind": "k\\ud800"}']

    found = read_prompts(write("a.jsonl", "\n".join(rows)))

    assert asked(found) == ["a\ufffd", "b\U0001f600", "\ufffdc"]
    assert found.normalised == {"lone surrogates replaced": 2}
    assert found.prompts[2].kind == "k\ufffd"


def test_line_of_12_megabytes_is_read(write: Write) -> None:
    long = "word " * 2_400_000

    assert asked(read_prompts(write("a.jsonl", lines({"prompt": long}, {"prompt": "b"})))) == [long, "b"]
    assert asked(read_prompts(write("a.csv", f"prompt\n{long}\n"))) == [long]
    assert csv.field_size_limit() == 131072


def test_duplicates_are_dropped_and_counted(write: Write) -> None:
    rows = [{"prompt": "a"}, {"messages": [{"role": "user", "content": "a"}]}, {"text": "a"}, {"prompt": "a "}]

    found = read_prompts(write("a.jsonl", lines(*rows)))

    assert [(prompt.line, prompt.shape) for prompt in found.prompts] == [(1, "prompt"), (3, "text"), (4, "prompt")]
    assert found.skipped == {"duplicate": 1}
    assert found.shapes == {"prompt": 2, "text": 1}


BROKEN = {
    "cut off": ('{"prompt": "x"', r"not valid JSON: Expecting ',' delimiter in column 15\. Correct the line\."),
    "raw newline": ('{"prompt": "x\ny"}', r"Unterminated string .* Write a line break inside a string as \\n\."),
    "raw tab": ('{"prompt": "x\ty"}', r"Invalid control character"),
    "two values": ('{"prompt": "x"} {"prompt": "y"}', r"more text follows the value in column 16"),
    "single quotes": ("{'prompt': 'x'}", r"Expecting property name"),
    "duplicate key": ('{"prompt": "x", "prompt": "y"}', r"the key 'prompt' is given twice"),
    "nested 3000 deep": ('{"prompt": ' + "[" * 3000 + "]" * 3000 + "}", r"nested too deeply"),
    "huge number": ('{"n": ' + "9" * 5000 + "}", r"not valid JSON: Exceeds the limit"),
    "latin-1": ('{"prompt": "caf\u00e9"}'.encode("latin-1"), r"not UTF-8 text: byte 0xe9 in column 16\. Save"),
    "number": ("42", r"no known shape of prompt; the row has no fields, it is a number"),
    "null": ("null", r"it is null"),
    "no known key": ('{"foo": 1, "ba\\ud800r": 2}', r"the fields 'foo', 'ba\\ud800r'\. Name .* --prompt-field\."),
    "list of numbers": ('{"prompt": [1, 2]}', r"a turn is a number\. Write it as"),
    "prompt is a number": ('{"prompt": 7}', r"text or a list of turns was expected, not a number"),
    "unknown role": ('[{"role": "wizard", "content": "x"}]', r"a turn has the role 'wizard'\. The roles are"),
    "no role": ('{"messages": [{"content": "x"}]}', r"a turn has the role None"),
    "content is an object": (
        '{"messages": [{"role": "user", "content": {"a": 1}}]}',
        r"content of a turn is an object",
    ),
    "messages is no JSON": ('{"messages": "hello"}', r"turns are given as text that is not valid JSON.* as a list"),
    "input is a number": ('{"instruction": "x", "input": 3}', r'the field "input" is a number\. Give it as text'),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_line_stops_with_its_number_or_is_counted(write: Write, case: str) -> None:
    broken, reason = BROKEN[case]
    raw = broken.encode() if isinstance(broken, str) else broken
    path = write("a.jsonl", b'{"prompt": "good"}\n\n' + raw + b'\n{"prompt": "too"}')

    with pytest.raises(PromptFileError, match=rf"^\S+a\.jsonl:3: .*{reason}") as error:
        read_prompts(path)
    str(error.value).encode()
    assert error.value.exit_code == 2

    found = read_prompts(path, skip_bad_lines=True)
    assert asked(found) == ["good", "too"]
    assert found.skipped == {"bad line": 1 + raw.count(b"\n")}


@pytest.mark.parametrize("case", sorted(BROKEN.keys() - {"raw newline", "two values"}))
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a"])
def test_file_of_one_broken_line_is_no_traceback(write: Write, case: str, name: str) -> None:
    broken, _ = BROKEN[case]
    with pytest.raises(PromptFileError, match=r"^\S+a(\.jsonl?)?(:1: .+|: .+)\. \S+"):
        read_prompts(write(name, broken), skip_bad_lines=True)


def test_first_line_may_be_the_broken_one(write: Write) -> None:
    content = '{"prompt": "x\n' + lines(*ROWS)
    for name in ("a.jsonl", "a.json"):
        path = write(name, content)
        with pytest.raises(PromptFileError, match=r"^\S+:1: not valid JSON"):
            read_prompts(path)
        assert asked(read_prompts(path, skip_bad_lines=True)) == ["one", "two", "three"]


def test_broken_pretty_text_names_the_one_line(write: Write) -> None:
    content = json.dumps(ROWS, indent=2).replace('"two"', '"two', 1)

    for name in ("a.json", "a.jsonl"):
        with pytest.raises(PromptFileError, match=r"^\S+:6: item 2: not valid JSON") as error:
            read_prompts(write(name, content))
        assert str(error.value).count("not valid JSON") == 1


@pytest.mark.parametrize("content", ['[\n{"prompt": "x"}\n', '[\n{"prompt": "x"},\n', '[\n{"prompt": "x"}\n"y"\n]'])
def test_array_without_its_end_or_comma_is_an_error(write: Write, content: str) -> None:
    with pytest.raises(PromptFileError, match=r":[234]: item [12]: not valid JSON"):
        read_prompts(write("a.json", content))


def test_error_lists_the_first_five(write: Write) -> None:
    content = lines({"prompt": "good"}) + "\nbad" * 8

    with pytest.raises(PromptFileError) as error:
        read_prompts(write("a.jsonl", content))

    message = str(error.value)
    assert [f":{number}: " in message for number in range(1, 10)] == [False] + [True] * 5 + [False] * 3
    assert message.endswith("and 3 more bad rows.\nTo leave bad rows out and count them, pass --skip-bad-lines.")


def test_element_of_a_wrapper_is_named_by_its_number(write: Write) -> None:
    with pytest.raises(PromptFileError, match=r"a\.json:1: item 2: no known shape"):
        read_prompts(write("a.json", json.dumps({"data": [{"prompt": "x"}, {"foo": "y"}]})))


@pytest.mark.parametrize("content", ["[]", '{"data": []}', '{"prompt": ""}', "{}", '{"a": [1], "b": [2]}'])
def test_file_without_a_prompt_is_an_error(write: Write, content: str) -> None:
    with pytest.raises(PromptFileError, match=r"a\.json"):
        read_prompts(write("a.json", content), skip_bad_lines=True)


def test_skipped_reasons_are_named_when_nothing_is_left(write: Write) -> None:
    rows = [{"prompt": " "}, {"prompt": None}, {"prompt": "x", "image": "x.png"}]

    with pytest.raises(PromptFileError, match=r"no row is a usable prompt \(empty prompt: 2, image or audio: 1\)\."):
        read_prompts(write("a.jsonl", lines(*rows)))


def test_prompt_field_names_the_prompt(write: Write) -> None:
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


def test_prompt_field_is_not_its_own_system_turn(write: Write) -> None:
    found = read_prompts(write("a.jsonl", lines({"instructions": "one"})), prompt_field="instructions")

    assert found.prompts[0].messages == (Message("user", "one"),)


def test_prompt_field_reaches_into_a_wrapper_but_not_past_itself(write: Write) -> None:
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
def test_wrong_prompt_field_is_said(write: Write, row: object, reason: str) -> None:
    with pytest.raises(PromptFileError, match=reason):
        read_prompts(write("a.jsonl", lines(row)), prompt_field="ask")


TABLE = 'kind,Prompt ,system\nchat,"one, ""quoted""\nline",\n\n,two,Be brief.\ncode,,\nchat,three\n'


def test_table_is_read_by_its_first_row(write: Write) -> None:
    found = read_prompts(write("a.csv", "\ufeff" + TABLE.replace("\n", "\r\n")))

    assert asked(found) == ['one, "quoted"\r\nline', "two", "three"]
    assert [prompt.line for prompt in found.prompts] == [2, 5, 7]
    assert [prompt.kind for prompt in found.prompts] == ["chat", "prompt", "chat"]
    assert found.prompts[1].messages == (Message("system", "Be brief."), Message("user", "two"))
    assert found.skipped == {"empty prompt": 1}


@pytest.mark.parametrize(("name", "separator"), [("a.tsv", "\t"), ("a.csv", ";"), ("a.csv", ",")])
def test_separators(write: Write, name: str, separator: str) -> None:
    content = f"id{separator}question{separator}\n7{separator}why; so{separator}\n".replace("; ", " ")

    assert asked(read_prompts(write(name, content))) == ["why so"]


def test_table_holds_conversations_as_json(write: Write) -> None:
    out = io.StringIO()
    turns = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "x"}]
    csv.writer(out).writerows([["messages", "prompt"], [json.dumps(turns), ""], ["", "two"]])

    assert asked(read_prompts(write("a.csv", out.getvalue()))) == ["one", "two"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("prompt,n\na,b,c\n", r":2: the row has 3 cells, the first row names 2 columns\. Put quotes"),
        ('prompt,n\n"a" b,c\n', r":2: not a valid table row \("),
        ('prompt,n\nx,1\n"a,\nb\n', r":3: not a valid table row \(unexpected end of data\)"),
        ("prompt,prompt\na,b\n", r":1: two columns have the same name\. Rename"),
        ('"prompt" x\na\n', r":1: not a valid table row"),
        ("who,what\na,b\n", r":2: no known shape of prompt; the row has the fields 'who', 'what'"),
        (b"prompt\ncaf\xe9\n", r":2: not UTF-8 text: byte 0xe9 in column 4"),
        (",,\n,,\n", r": no row is a usable prompt \(there is none\)"),
    ],
)
def test_broken_table_names_its_row(write: Write, content: str | bytes, reason: str) -> None:
    with pytest.raises(PromptFileError, match=r"a\.csv" + reason):
        read_prompts(write("a.csv", content))


def test_broken_table_row_can_be_skipped(write: Write) -> None:
    found = read_prompts(write("a.csv", 'prompt,n\n"a" b,c\nx,1\ny,2,3\nz,3,\n'), skip_bad_lines=True)

    assert asked(found) == ["x", "z"]
    assert found.skipped == {"bad line": 2}


@FILES
@given(texts=st.lists(TEXTS, min_size=1, max_size=6, unique=True), ascii_only=st.booleans(), indent=st.booleans())
def test_any_text_survives_json(write: Write, texts: list[str], ascii_only: bool, indent: bool) -> None:
    rows = [{"messages": [{"role": "user", "content": text}]} for text in texts]
    per_line = "\n".join(json.dumps(row, ensure_ascii=ascii_only) for row in rows)
    array = json.dumps(rows, ensure_ascii=ascii_only, indent=2 if indent else None)

    for content in (per_line, array):
        assert asked(read_prompts(write("a.jsonl", content))) == texts


@FILES
@given(texts=st.lists(TEXTS, min_size=1, max_size=6, unique=True))
def test_any_text_survives_a_table(write: Write, texts: list[str]) -> None:
    out = io.StringIO(newline="")
    # A text with NUL makes a file that is taken for a binary one, in every tool.
    texts = list(dict.fromkeys(text.replace("\x00", "0") for text in texts))
    csv.writer(out, quoting=csv.QUOTE_ALL).writerows([["text"], *([text] for text in texts)])

    assert asked(read_prompts(write("a.csv", out.getvalue()))) == texts


@FILES
@given(content=st.one_of(st.binary(max_size=60), st.text('{}[]":,a1\\\n ', max_size=60).map(str.encode)))
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.tsv", "a.txt", "a"])
def test_any_bytes_give_prompts_or_a_reason(write: Write, name: str, content: bytes) -> None:
    path = write(name, content)
    prompts: tuple[Prompt, ...] = ()
    with contextlib.suppress(PromptFileError):
        found = read_prompts(path, skip_bad_lines=True)
        prompts = found.prompts
        assert len(prompts) == sum(found.shapes.values()) > 0
    # Whatever is read can be written again and shown to a tokenizer.
    assert all(json.dumps(prompt.id + prompt.kind, ensure_ascii=False).encode() for prompt in prompts)
    assert all(text.strip().encode() for text in map(last_text, prompts))


def test_id_is_of_the_content_alone() -> None:
    turns = (Message("user", "a"),)

    assert prompt_id(messages=turns) == prompt_id(messages=(Message("user", "a"),))
    assert len(prompt_id(text="a")) == 16
    distinct = [
        prompt_id(messages=turns),
        prompt_id(text="a"),
        prompt_id(messages=(Message("system", "a"),)),
        prompt_id(messages=(Message("user", "a"), Message("user", ""))),
    ]
    assert len(set(distinct)) == len(distinct)


def test_prompt_holds_messages_or_text() -> None:
    for messages, text in ((None, None), ((Message("user", "a"),), "a")):
        with pytest.raises(UsageError, match="line 3 holds messages and text, or neither"):
            Prompt(id="0", kind="k", messages=messages, text=text, line=3, shape="s")
