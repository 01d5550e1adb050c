from __future__ import annotations

from typing import Any

import pytest
from tests.support.tiny_tokenizer import tiny_tokenizer

from selfspec.prompt_ids import prompt_ids, read_messages
from selfspec_calibrate.prompts.prompt import Message
from selfspec_runtime.errors import UsageError

TOKENIZER = tiny_tokenizer(128)
BASE = tiny_tokenizer(128, chat_template=None, add_bos=True)


def text_of(prompt: Any, tokenizer: Any = TOKENIZER, **options: Any) -> str:
    return str(tokenizer.decode(prompt_ids(prompt, tokenizer, **options).token_ids))


def test_text_becomes_one_user_message() -> None:
    assert text_of("hello") == "<s>[user]hello\n[assistant]"


def test_a_system_message_goes_first_unless_there_is_one() -> None:
    assert text_of("hello", system="be brief") == "<s>[system]be brief\n[user]hello\n[assistant]"
    messages = [{"role": "system", "content": "own"}, {"role": "user", "content": "hello"}]
    assert text_of(messages, system="be brief") == "<s>[system]own\n[user]hello\n[assistant]"


def test_raw_text_skips_the_template_and_gets_one_beginning_token() -> None:
    assert text_of("hello", raw=True) == "hello"
    assert text_of("hello", BASE) == "<s>hello"
    assert text_of("<s>hello", BASE) == "<s>hello"


def test_messages_of_a_tokenizer_without_template_are_joined_with_a_notice() -> None:
    rendered = prompt_ids([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}], BASE)
    assert BASE.decode(rendered.token_ids) == "<s>hi\n\nyes"
    assert "no chat template" in rendered.notices[0]


def test_token_ids_are_taken_as_they_are() -> None:
    assert prompt_ids([5, 6, 7], TOKENIZER).token_ids == (5, 6, 7)


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert read_messages([{"role": "user", "content": parts}]) == (Message("user", "one\ntwo"),)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "The prompt is empty"),
        ([], "The prompt is empty"),
        (3, "neither text nor a list of messages"),
        (["a", "b"], "2 prompts were given at once.*batch size 1"),
        ([[{"role": "user", "content": "a"}]], "1 prompts were given at once"),
        ([[1, 2], [3]], "2 prompts were given at once"),
        ([{"role": "user"}], "Message 1 holds something else than text"),
        ([{"role": "user", "content": [{"type": "image"}]}], "selfspec decodes text only"),
        ([{"content": "x"}], r"Message 1 is .*Give it as \{"),
        ([True, False], "Message 1 is True"),
        ([1, "a"], "Message 1 is 1"),
    ],
)
def test_what_is_no_prompt_is_refused(prompt: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        prompt_ids(prompt, TOKENIZER)


@pytest.mark.parametrize("raw", [False, True])
def test_bytes_that_are_no_text_are_refused_by_their_place(raw: bool) -> None:
    with pytest.raises(UsageError, match=r"The prompt is not text at character 2: .* Convert it to UTF-8"):
        prompt_ids("a\udcff", tiny_tokenizer(), raw=raw)
    with pytest.raises(UsageError, match="Message 2 is not text at character 1"):
        prompt_ids([{"role": "user", "content": "a"}, {"role": "user", "content": "\ud800"}], tiny_tokenizer())
    with pytest.raises(UsageError, match="The system message is not text"):
        prompt_ids("a", tiny_tokenizer(), system="\udcff", raw=raw)


@pytest.mark.parametrize(
    "template",
    ["{{ 1 / 0 }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{% for x in range(10 ** 9) %}{% endfor %}"],
)
def test_whatever_a_template_does_wrong_is_said(template: str) -> None:
    with pytest.raises(UsageError, match="The chat template refuses the conversation"):
        prompt_ids("a", tiny_tokenizer(chat_template=template))
