"""The prompt file that the demo recipe calibrates on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from selfspec_calibrate.prompts.prompt import Prompt
from selfspec_calibrate.prompts.reader import PromptFile, read_prompts
from selfspec_calibrate.prompts.split import split_held_out

DEMO = Path(__file__).parents[4] / "recipes" / "demo" / "prompts.jsonl"
KINDS = ("chat", "code", "rewrite", "summarize")
WORDS = {"rewrite": (60, 120), "summarize": (120, 220)}


@pytest.fixture(scope="module")
def demo() -> PromptFile:
    return read_prompts(DEMO)


def last_turn(prompt: Prompt) -> str:
    assert prompt.messages is not None
    assert prompt.messages[-1].role == "user"
    return prompt.messages[-1].content


def test_all_rows_read_cleanly(demo: PromptFile) -> None:
    assert demo.shapes == {"messages": 40}
    assert (demo.skipped, demo.normalised) == ({}, {})


def test_ten_of_each_kind(demo: PromptFile) -> None:
    assert Counter(prompt.kind for prompt in demo.prompts) == dict.fromkeys(KINDS, 10)


@pytest.mark.parametrize("kind", WORDS)
def test_texts_to_work_on_are_neither_short_nor_long(demo: PromptFile, kind: str) -> None:
    low, high = WORDS[kind]
    for prompt in demo.prompts:
        if prompt.kind == kind:
            instruction, text = last_turn(prompt).split("\n\n", maxsplit=1)
            assert low <= len(text.split()) <= high, instruction


def test_some_rewrites_are_of_code(demo: PromptFile) -> None:
    assert sum("```" in last_turn(prompt) for prompt in demo.prompts if prompt.kind == "rewrite") >= 3


def test_both_sides_hold_five_of_each_kind(demo: PromptFile) -> None:
    for side in split_held_out(demo.prompts):
        assert Counter(prompt.kind for prompt in side) == dict.fromkeys(KINDS, 5)
