"""What a prompt is."""

from __future__ import annotations

import pytest

from selfspec_calibrate.prompts.prompt import Message, Prompt, prompt_id
from selfspec_runtime.errors import UsageError


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
