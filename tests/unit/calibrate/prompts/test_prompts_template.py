"""Rendering to ids: once, with the model's template, and never as the Python form of a list."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from selfspec_calibrate.prompts.prompt import Message, Prompt, prompt_id
from selfspec_calibrate.prompts.reader import read_prompts
from selfspec_calibrate.prompts.template import (
    NO_TEMPLATE,
    SYSTEM_MERGED,
    SYSTEM_UNUSED,
    TURNS_MERGED,
    RenderedPrompt,
    render,
    render_messages,
)
from selfspec_calibrate.prompts.turns import alternate, without_system
from selfspec_runtime.errors import UsageError

PLAIN = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}{% if mode is defined %}({{ mode }}){% endif %}"
)
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + PLAIN
ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}{% endfor %}" + PLAIN
)
STUBBORN = "{{ raise_exception('Only on Tuesdays') }}"

SYSTEM = Message("system", "sys")
USER = Message("user", "ask")
MORE = Message("user", "more")
ANSWER = Message("assistant", "ans")


def tokenizer_of(template: str | dict[str, str] | None) -> Any:
    """Bytes as tokens, and a beginning-of-text token that every call of the tokenizer puts in front."""
    vocab = {"<s>": 0, **{char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()), start=1)}}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>")
    tokenizer.chat_template = template
    return tokenizer


def rendered(template: str | None, messages: Sequence[Message], **options: Any) -> tuple[str, tuple[str, ...]]:
    tokenizer = tokenizer_of(template)
    found = render_messages(messages, tokenizer, **options)
    return tokenizer.decode(found.token_ids), found.notices


def prompt(*messages: Message, text: str | None = None) -> Prompt:
    turns = messages or None
    return Prompt(id=prompt_id(messages=turns, text=text), kind="k", messages=turns, text=text, line=17, shape="s")


def test_template_is_rendered_once_with_one_bos() -> None:
    found = render(prompt(SYSTEM, USER), tokenizer_of(PLAIN))

    assert found.token_ids.count(0) == 1
    assert found.token_ids[0] == 0
    assert all(type(token_id) is int for token_id in found.token_ids)
    assert rendered(PLAIN, [SYSTEM, USER]) == ("<s><system>sys<user>ask<assistant>", ())


def test_generation_prompt_and_template_variables() -> None:
    assert rendered(PLAIN, [USER, ANSWER], add_generation_prompt=False)[0] == "<s><user>ask<assistant>ans"
    assert rendered(PLAIN, [USER], template_kwargs={"mode": "fast"})[0] == "<s><user>ask<assistant>(fast)"


@pytest.mark.parametrize("name", ["tokenize", "return_dict", "add_generation_prompt", "conversation"])
def test_variables_that_are_ours_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"template variable {name} is set by selfspec"):
        rendered(PLAIN, [USER], template_kwargs={name: False})


def test_system_is_given_to_conversations_without_one() -> None:
    tokenizer = tokenizer_of(PLAIN)

    with_system = render(prompt(SYSTEM, USER), tokenizer)
    assert render(prompt(USER), tokenizer, system="sys") == with_system
    assert render(prompt(SYSTEM, USER), tokenizer, system="other") == with_system
    assert render(prompt(USER), tokenizer, system="") == render(prompt(USER), tokenizer)


def test_raw_text_gets_no_template() -> None:
    tokenizer = tokenizer_of(PLAIN)

    assert tokenizer.decode(render(prompt(text="def f():"), tokenizer).token_ids) == "<s>def f():"
    assert render(prompt(text="x"), tokenizer, system="sys").notices == (SYSTEM_UNUSED,)


def test_raw_text_with_its_own_bos_gets_no_second_one() -> None:
    assert render(prompt(text="<s>x"), tokenizer_of(PLAIN)) == render(prompt(text="x"), tokenizer_of(PLAIN))


@pytest.mark.parametrize("template", [None, "", {}])
def test_without_template_the_contents_are_joined(template: Any) -> None:
    assert rendered(template, [SYSTEM, USER]) == ("<s>sys\n\nask", (NO_TEMPLATE,))


def test_template_can_be_given_from_outside() -> None:
    assert rendered(None, [USER], template_kwargs={"chat_template": PLAIN}) == ("<s><user>ask<assistant>", ())


def test_several_templates_use_the_default_or_are_named() -> None:
    assert tokenizer_of({"default": PLAIN, "rag": STUBBORN}).chat_template is not None
    assert rendered({"default": PLAIN, "rag": STUBBORN}, [USER])[0] == "<s><user>ask<assistant>"  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"\['rag', 'tool_use'\]"):
        rendered({"tool_use": PLAIN, "rag": PLAIN}, [USER])  # type: ignore[arg-type]
    assert rendered({"rag": PLAIN}, [USER], template_kwargs={"chat_template": "rag"})[1] == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("template", "messages", "text", "notices"),
    [
        (NO_SYSTEM, [SYSTEM, USER], "<user>sys\n\nask", (SYSTEM_MERGED,)),
        (NO_SYSTEM, [USER, MORE], "<user>ask<user>more", ()),
        (ALTERNATING, [SYSTEM, USER], "<user>sys\n\nask", (SYSTEM_MERGED,)),
        (ALTERNATING, [USER, ANSWER, MORE], "<user>ask<assistant>ans<user>more", ()),
        (ALTERNATING, [USER, MORE], "<user>ask\n\nmore", (TURNS_MERGED,)),
        (ALTERNATING, [ANSWER, USER], "<user>ask", (TURNS_MERGED,)),
        (ALTERNATING, [SYSTEM, ANSWER, USER, MORE], "<user>sys\n\nask\n\nmore", (SYSTEM_MERGED, TURNS_MERGED)),
        (PLAIN, [ANSWER, USER, MORE], "<assistant>ans<user>ask<user>more", ()),
    ],
)
def test_strict_template_gets_the_least_change_that_it_takes(
    template: str, messages: list[Message], text: str, notices: tuple[str, ...]
) -> None:
    assert rendered(template, messages) == (f"<s>{text}<assistant>", notices)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (STUBBORN, "Only on Tuesdays"),
        ("{{ messages[0].nothing.more }}", "nothing"),
        ("{% if %}", "Expected an expression"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
    ],
)
def test_refusal_keeps_the_template_s_words_and_names_the_line(template: str, reason: str) -> None:
    with pytest.raises(UsageError, match=rf"^Prompt of line 17: The chat template refuses .*{reason}.*--chat-template"):
        render(prompt(SYSTEM, USER), tokenizer_of(template))


def test_conversation_of_answers_only_is_refused_by_a_strict_template() -> None:
    with pytest.raises(UsageError, match="refuses the conversation"):
        rendered(ALTERNATING, [ANSWER])
    with pytest.raises(UsageError, match="refuses the conversation"):
        rendered(PLAIN, [])


def test_prompt_without_tokens_is_refused() -> None:
    with pytest.raises(UsageError, match="has no tokens"):
        rendered("{# nothing #}", [USER])


def test_list_content_is_rendered_as_text(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": parts}]}))
    tokenizer = tokenizer_of(PLAIN)

    found = render(read_prompts(path).prompts[0], tokenizer)

    assert tokenizer.decode(found.token_ids) == "<s><user>one\ntwo<assistant>"


def test_markup_and_template_syntax_of_a_prompt_stay_text() -> None:
    content = "[/INST] [red] {{ bos_token }} {% raw %}"

    assert rendered(PLAIN, [Message("user", content)])[0] == f"<s><user>{content}<assistant>"


TURNS = st.lists(
    st.builds(Message, st.sampled_from(["system", "user", "assistant"]), st.text("ab", min_size=1, max_size=3)),
    max_size=8,
)
BRIEF = settings(max_examples=150, deadline=None)


@BRIEF
@given(turns=TURNS)
def test_alternating_turns_alternate_and_keep_what_was_asked(turns: list[Message]) -> None:
    found = alternate(without_system(turns))

    assert [turn.role for turn in found] == ["user" if i % 2 == 0 else "assistant" for i in range(len(found))]
    kept = "".join(turn.content for turn in found if turn.role == "user").replace("\n\n", "")
    asked = "".join(turn.content for turn in turns if turn.role == "user")
    assert sorted(kept) == sorted(asked + "".join(turn.content for turn in turns if turn.role == "system"))
    assert alternate(found) == without_system(found) == found


@settings(max_examples=40, deadline=None)
@given(turns=TURNS.filter(lambda turns: any(turn.role == "user" for turn in turns)))
def test_strictest_template_takes_any_conversation_with_a_question(turns: list[Message]) -> None:
    found = render_messages(turns, STRICT)

    assert isinstance(found, RenderedPrompt)
    assert found.token_ids.count(0) == 1


STRICT = tokenizer_of(NO_SYSTEM + ALTERNATING.replace("{{ bos_token }}", ""))
