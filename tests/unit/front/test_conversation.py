from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from selfspec_calibrate.prompts.prompt import Message
from selfspec_calibrate.prompts.reader import read_prompts
from selfspec_runtime.errors import CapacityError, SelfspecError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from selfspec import Conversation, SpeculativeModel


@pytest.fixture
def chat(ngram_model: SpeculativeModel) -> Conversation:
    return ngram_model.chat(system="be brief", max_new_tokens=8)


def roles(chat: Conversation) -> str:
    return "".join(message.role[0] for message in chat.messages)


def test_turns_are_kept_and_equal_fresh_generations(chat: Conversation, ngram_model: SpeculativeModel) -> None:
    for turn, text in enumerate(("hello there", "and now?", "again")):
        before = [*chat.messages, Message("user", text)]
        reply = chat.say(text)
        fresh = ngram_model.generate(before, max_new_tokens=8)
        assert reply.token_ids == fresh.token_ids
        assert reply.prompt_token_ids == fresh.prompt_token_ids
        assert roles(chat) == "s" + "ua" * (turn + 1)


def test_earlier_turns_are_not_run_again(chat: Conversation, monkeypatch: pytest.MonkeyPatch) -> None:
    target = chat.model.engine.target
    chat.say("a first message of some length")
    assert chat.num_reused == 0
    lengths: list[int] = []
    logits = target.logits

    def counted(token_ids: Any, *args: Any, **kwargs: Any) -> Any:
        lengths.append(len(token_ids))
        return logits(token_ids, *args, **kwargs)

    monkeypatch.setattr(target, "logits", counted)
    reply = chat.say("second")
    assert chat.num_reused >= len("[system]be brief\n[user]a first message of some length\n")
    assert lengths[0] == len(reply.prompt_token_ids) - chat.num_reused


def test_a_reply_that_is_cut_short_is_kept_so_far(chat: Conversation, ngram_model: SpeculativeModel) -> None:
    with closing(chat.stream("hello")) as steps:
        pieces = [next(steps).text, next(steps).text]
    assert roles(chat) == "sua"
    assert chat.messages[-1].content == "".join(pieces)
    assert chat.last is not None
    assert chat.last.finish_reason is None
    before = [*chat.messages, Message("user", "go on")]
    assert chat.say("go on").token_ids == ngram_model.generate(before, max_new_tokens=8).token_ids


@pytest.mark.parametrize("after", [0, 1, 3])
def test_an_interrupt_inside_a_pass_leaves_a_conversation_that_goes_on(
    chat: Conversation, ngram_model: SpeculativeModel, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    chat.say("one")
    target = chat.model.engine.target
    logits = target.logits
    calls: list[int] = []

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        output = logits(*args, **kwargs)
        if len(calls) > after:
            raise KeyboardInterrupt
        return output

    monkeypatch.setattr(target, "logits", interrupted)
    with pytest.raises(KeyboardInterrupt), closing(chat.stream("two")) as steps:
        list(steps)
    monkeypatch.undo()
    assert roles(chat) == ("sua" if after == 0 else "suaua")
    before = [*chat.messages, Message("user", "three")]
    assert chat.say("three").token_ids == ngram_model.generate(before, max_new_tokens=8).token_ids


def test_a_conversation_that_outgrows_the_context_stays_as_it_was(chat: Conversation) -> None:
    chat.say("hello")
    before = chat.messages
    with pytest.raises(CapacityError, match="context of 512"):
        chat.say("x" * 600)
    assert chat.messages == before
    assert chat.say("shorter").finish_reason is not None


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_empty_message_is_refused(chat: Conversation, text: str) -> None:
    with pytest.raises(UsageError, match="The message is empty"):
        chat.say(text)


def test_retry_replaces_the_reply_with_another_seed(ngram_model: SpeculativeModel) -> None:
    chat = ngram_model.chat(max_new_tokens=8, temperature=1.5, seed=4)
    first = chat.say("hello").token_ids
    list(chat.retry())
    assert roles(chat) == "ua"
    assert chat.last is not None
    assert chat.last.token_ids != first
    assert chat.last.token_ids == ngram_model.generate("hello", max_new_tokens=8, temperature=1.5, seed=5).token_ids


def test_undo_takes_back_one_exchange(chat: Conversation) -> None:
    chat.say("one")
    chat.say("two")
    assert chat.undo() == "two"
    assert roles(chat) == "sua"
    assert chat.undo() == "one"
    assert chat.undo() is None
    assert roles(chat) == "s"
    with pytest.raises(UsageError, match="no reply to replace"):
        chat.retry()


def test_clear_keeps_the_system_message_and_set_system_replaces_it(chat: Conversation) -> None:
    chat.say("one")
    chat.set_system("be long")
    assert (chat.system, roles(chat)) == ("be long", "sua")
    chat.clear()
    assert roles(chat) == "s"
    chat.set_system(None)
    assert chat.messages == ()


def test_without_speculation_the_words_are_the_same(chat: Conversation) -> None:
    drafted = chat.say("abc abc").token_ids
    chat.undo()
    chat.speculating = False
    assert chat.say("abc abc").token_ids == drafted
    assert chat.last is not None
    assert chat.last.stats.num_draft_tokens == 0


def test_the_same_prompt_is_decoded_plainly_for_comparison(chat: Conversation) -> None:
    assert chat.plain_again() is None
    reply = chat.say("abc abc")
    plain = chat.plain_again()
    assert plain is not None
    assert plain.token_ids == reply.token_ids
    assert plain.stats.num_draft_tokens == 0
    assert roles(chat) == "sua"


def test_a_saved_conversation_goes_on_and_is_a_prompt_file(
    chat: Conversation, ngram_model: SpeculativeModel, tmp_path: Path
) -> None:
    path = tmp_path / "chat.json"
    chat.say("hello")
    chat.say("more")
    chat.save(path)
    other = ngram_model.chat()
    other.load(path)
    assert other.messages == chat.messages
    assert other.options.max_new_tokens == 8
    assert other.say("and?").token_ids == chat.say("and?").token_ids
    prompts = read_prompts(path).prompts
    assert [message.content for message in prompts[0].messages or ()][-1] == "more"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "There is no file"),
        ('{"messages": [\n}', "chat.json:2: "),
        ('{"messages": []}', 'no list "messages"'),
        ("3", 'no list "messages"'),
        ('{"messages": ["hi"]}', "Message 1 is 'hi'"),
        (
            '{"messages": [{"role": "user", "content": "x"}], "settings": {"temperature": "hot"}}',
            "The setting temperature cannot be 'hot'",
        ),
    ],
)
def test_files_that_are_no_conversation_are_refused(
    chat: Conversation, tmp_path: Path, text: str | None, message: str
) -> None:
    path = tmp_path / "chat.json"
    if text is not None:
        path.write_text(text)
    before = chat.messages
    with pytest.raises(UsageError, match=message):
        chat.load(path)
    assert chat.messages == before


def test_a_bare_list_of_messages_is_loaded_too(chat: Conversation, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_text(json.dumps([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]))
    chat.load(path)
    assert roles(chat) == "ua"
    assert chat.options.max_new_tokens == 8


def test_no_disk_space_is_said_when_saving(chat: Conversation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(SelfspecError, match="Free some space"):
        chat.save(tmp_path / "chat.json")
