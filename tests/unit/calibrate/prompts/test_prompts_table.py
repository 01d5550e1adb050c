"""Prompts in tables."""

from __future__ import annotations

import csv
import io
import json

import pytest
from tests.support.prompt_files import Folder, asked

from selfspec_calibrate.prompts.prompt import Message
from selfspec_calibrate.prompts.reader import read_prompts
from selfspec_runtime.errors import PromptFileError

TABLE = 'kind,Prompt ,system\nchat,"one, ""quoted""\nline",\n\n,two,Be brief.\ncode,,\nchat,three\n'


def test_table_is_read_by_its_first_row(write: Folder) -> None:
    found = read_prompts(write("a.csv", "\ufeff" + TABLE.replace("\n", "\r\n")))

    assert asked(found) == ['one, "quoted"\r\nline', "two", "three"]
    assert [prompt.line for prompt in found.prompts] == [2, 5, 7]
    assert [prompt.kind for prompt in found.prompts] == ["chat", "prompt", "chat"]
    assert found.prompts[1].messages == (Message("system", "Be brief."), Message("user", "two"))
    assert found.skipped == {"empty prompt": 1}


@pytest.mark.parametrize(("name", "separator"), [("a.tsv", "\t"), ("a.csv", ";"), ("a.csv", ",")])
def test_separators(write: Folder, name: str, separator: str) -> None:
    content = f"id{separator}question{separator}\n7{separator}why; so{separator}\n".replace("; ", " ")

    assert asked(read_prompts(write(name, content))) == ["why so"]


def test_table_holds_conversations_as_json(write: Folder) -> None:
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
def test_broken_table_names_its_row(write: Folder, content: str | bytes, reason: str) -> None:
    with pytest.raises(PromptFileError, match=r"a\.csv" + reason):
        read_prompts(write("a.csv", content))


def test_broken_table_row_can_be_skipped(write: Folder) -> None:
    found = read_prompts(write("a.csv", 'prompt,n\n"a" b,c\nx,1\ny,2,3\nz,3,\n'), skip_bad_lines=True)

    assert asked(found) == ["x", "z"]
    assert found.skipped == {"bad line": 2}
