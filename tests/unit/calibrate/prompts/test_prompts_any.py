"""Whatever text a file holds."""

from __future__ import annotations

import contextlib
import csv
import io
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.prompt_files import Folder, asked, last_text

from selfspec_calibrate.prompts.prompt import Prompt
from selfspec_calibrate.prompts.reader import read_prompts
from selfspec_runtime.errors import PromptFileError

TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40).filter(lambda text: bool(text.strip()))
FILES = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


@FILES
@given(texts=st.lists(TEXTS, min_size=1, max_size=6, unique=True), ascii_only=st.booleans(), indent=st.booleans())
def test_any_text_survives_json(write: Folder, texts: list[str], ascii_only: bool, indent: bool) -> None:
    rows = [{"messages": [{"role": "user", "content": text}]} for text in texts]
    per_line = "\n".join(json.dumps(row, ensure_ascii=ascii_only) for row in rows)
    array = json.dumps(rows, ensure_ascii=ascii_only, indent=2 if indent else None)

    for content in (per_line, array):
        assert asked(read_prompts(write("a.jsonl", content))) == texts


@FILES
@given(texts=st.lists(TEXTS, min_size=1, max_size=6, unique=True))
def test_any_text_survives_a_table(write: Folder, texts: list[str]) -> None:
    out = io.StringIO(newline="")
    # A text with NUL makes a file that is taken for a binary one, in every tool.
    texts = list(dict.fromkeys(text.replace("\x00", "0") for text in texts))
    csv.writer(out, quoting=csv.QUOTE_ALL).writerows([["text"], *([text] for text in texts)])

    assert asked(read_prompts(write("a.csv", out.getvalue()))) == texts


@FILES
@given(content=st.one_of(st.binary(max_size=60), st.text('{}[]":,a1\\\n ', max_size=60).map(str.encode)))
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.tsv", "a.txt", "a"])
def test_any_bytes_give_prompts_or_a_reason(write: Folder, name: str, content: bytes) -> None:
    path = write(name, content)
    prompts: tuple[Prompt, ...] = ()
    with contextlib.suppress(PromptFileError):
        found = read_prompts(path, skip_bad_lines=True)
        prompts = found.prompts
        assert len(prompts) == sum(found.shapes.values()) > 0
    # Whatever is read can be written again and shown to a tokenizer.
    assert all(json.dumps(prompt.id + prompt.kind, ensure_ascii=False).encode() for prompt in prompts)
    assert all(text.strip().encode() for text in map(last_text, prompts))
