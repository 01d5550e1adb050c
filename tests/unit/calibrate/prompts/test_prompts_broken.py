"""The errors of broken files: what is wrong, where, and what to do."""

from __future__ import annotations

import json

import pytest
from tests.support.prompt_files import ROWS, Folder, asked, lines

from selfspec_calibrate.prompts.reader import read_prompts
from selfspec_runtime.errors import PromptFileError

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
def test_broken_line_stops_with_its_number_or_is_counted(write: Folder, case: str) -> None:
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
def test_file_of_one_broken_line_is_no_traceback(write: Folder, case: str, name: str) -> None:
    broken, _ = BROKEN[case]
    with pytest.raises(PromptFileError, match=r"^\S+a(\.jsonl?)?(:1: .+|: .+)\. \S+"):
        read_prompts(write(name, broken), skip_bad_lines=True)


def test_first_line_may_be_the_broken_one(write: Folder) -> None:
    content = '{"prompt": "x\n' + lines(*ROWS)
    for name in ("a.jsonl", "a.json"):
        path = write(name, content)
        with pytest.raises(PromptFileError, match=r"^\S+:1: not valid JSON"):
            read_prompts(path)
        assert asked(read_prompts(path, skip_bad_lines=True)) == ["one", "two", "three"]


def test_broken_pretty_text_names_the_one_line(write: Folder) -> None:
    content = json.dumps(ROWS, indent=2).replace('"two"', '"two', 1)

    for name in ("a.json", "a.jsonl"):
        with pytest.raises(PromptFileError, match=r"^\S+:6: item 2: not valid JSON") as error:
            read_prompts(write(name, content))
        assert str(error.value).count("not valid JSON") == 1


@pytest.mark.parametrize("content", ['[\n{"prompt": "x"}\n', '[\n{"prompt": "x"},\n', '[\n{"prompt": "x"}\n"y"\n]'])
def test_array_without_its_end_or_comma_is_an_error(write: Folder, content: str) -> None:
    with pytest.raises(PromptFileError, match=r":[234]: item [12]: not valid JSON"):
        read_prompts(write("a.json", content))


def test_error_lists_the_first_five(write: Folder) -> None:
    content = lines({"prompt": "good"}) + "\nbad" * 8

    with pytest.raises(PromptFileError) as error:
        read_prompts(write("a.jsonl", content))

    message = str(error.value)
    assert [f":{number}: " in message for number in range(1, 10)] == [False] + [True] * 5 + [False] * 3
    assert message.endswith("and 3 more bad rows.\nTo leave bad rows out and count them, pass --skip-bad-lines.")


def test_element_of_a_wrapper_is_named_by_its_number(write: Folder) -> None:
    with pytest.raises(PromptFileError, match=r"a\.json:1: item 2: no known shape"):
        read_prompts(write("a.json", json.dumps({"data": [{"prompt": "x"}, {"foo": "y"}]})))


@pytest.mark.parametrize("content", ["[]", '{"data": []}', '{"prompt": ""}', "{}", '{"a": [1], "b": [2]}'])
def test_file_without_a_prompt_is_an_error(write: Folder, content: str) -> None:
    with pytest.raises(PromptFileError, match=r"a\.json"):
        read_prompts(write("a.json", content), skip_bad_lines=True)


def test_skipped_reasons_are_named_when_nothing_is_left(write: Folder) -> None:
    rows = [{"prompt": " "}, {"prompt": None}, {"prompt": "x", "image": "x.png"}]

    with pytest.raises(PromptFileError, match=r"no row is a usable prompt \(empty prompt: 2, image or audio: 1\)\."):
        read_prompts(write("a.jsonl", lines(*rows)))
