from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from selfspec.cli.chat import PROMPT, typed_lines
from selfspec.cli.chat_session import ChatSession
from selfspec.cli.console import Terminal
from selfspec_runtime.decoder import Decoder

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.command_line import CommandLine

    from selfspec import SpeculativeModel


class Chat:
    """A session whose output is read after each line."""

    def __init__(self, model: SpeculativeModel, capture: pytest.CaptureFixture[str]) -> None:
        self.conversation = model.chat(max_new_tokens=8)
        self.session = ChatSession(self.conversation, Terminal())
        self.capture = capture

    def __call__(self, line: str) -> tuple[str, str]:
        """What a line wrote to stdout and to stderr."""
        self.capture.readouterr()
        assert self.session.handle(line)
        out, err = self.capture.readouterr()
        return out, err

    @property
    def roles(self) -> str:
        """First letters of all roles."""
        return "".join(message.role[0] for message in self.conversation.messages)


@pytest.fixture
def chat(ngram_model: SpeculativeModel, capsys: pytest.CaptureFixture[str]) -> Chat:
    return Chat(ngram_model, capsys)


def test_a_reply_is_written_as_it_comes_and_its_speed_beside_it(chat: Chat) -> None:
    out, err = chat("hello")
    assert chat.conversation.last is not None
    assert out == chat.conversation.last.text + "\n"
    assert "8 tokens" in err
    assert "/set max_new_tokens=1000" in err


def test_ctrl_c_stops_the_reply_and_keeps_what_came(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Decoder._round
    calls: list[int] = []

    def interrupted(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return rounds(self, *args, **kwargs)

    monkeypatch.setattr(Decoder, "_round", interrupted)
    out, err = chat("hello")
    monkeypatch.undo()
    assert "Stopped; the reply so far is kept" in err
    assert chat.roles == "ua"
    assert out == chat.conversation.messages[-1].content + "\n"
    chat("go on")
    assert chat.roles == "uaua"


def test_ctrl_c_before_the_first_token_leaves_the_conversation_as_it_was(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Decoder, "_prefill", interrupted)
    out, err = chat("hello")
    monkeypatch.undo()
    assert chat.roles == ""
    assert out == ""
    assert "nothing had come yet, and nothing is kept" in err
    assert "/retry" not in err
    chat.session.ends_when_stopped = True
    monkeypatch.setattr(Decoder, "_prefill", interrupted)
    with pytest.raises(KeyboardInterrupt):
        chat("hello")


def test_unknown_commands_show_help_and_are_not_sent(chat: Chat) -> None:
    for line in ("/hlep", "!nonsense now"):
        out, err = chat(line)
        assert out == ""
        assert "it was not sent to the model" in err
        assert "/retry" in err
    assert chat.roles == ""


def test_an_escaped_slash_is_sent(chat: Chat) -> None:
    chat("//help")
    assert chat.conversation.messages[0].content == "/help"


def test_retry_undo_clear_and_system(chat: Chat) -> None:
    assert "There is no reply to replace" in chat("/retry")[1]
    assert "Nothing was said" in chat("/undo")[1]
    chat("hello")
    assert chat("/retry")[0]
    assert chat.roles == "ua"
    assert "Taken back: hello" in chat("/undo")[1]
    chat("/system be brief")
    chat("hello")
    assert chat.roles == "sua"
    chat("/clear")
    assert chat.roles == "s"
    chat("/system")
    assert chat.roles == ""


def test_settings_are_changed_shown_and_checked_at_once(chat: Chat) -> None:
    assert "temperature=0.7" in chat("/set temperature=0.7 max_new_tokens=3")[1]
    chat("hello")
    assert chat.conversation.last is not None
    assert len(chat.conversation.last.token_ids) == 3
    for line, message in (
        ("/set temperature=hot", "The setting temperature cannot be 'hot'"),
        ("/set temprature=1", "There is no setting 'temprature': the settings are max_new_tokens"),
        ("/set top_p=7", "top_p is 7.0"),
        ("/set max_new_tokens=0", "cannot be 0: ask for at least 1"),
        ("/set nonsense", "is not understood"),
        ('/set stop=""', "cannot be '': an empty string would end every reply at once; stop=[] takes all"),
        ("/set seed=[" + "[" * 100_000 + "]", "The setting seed cannot be"),
    ):
        assert message in chat(line)[1]
    assert chat.conversation.options.sampling.temperature == 0.7
    chat("/set temperature=none")
    assert chat.conversation.options.sampling.temperature is None


def test_speculation_is_switched_and_compared(chat: Chat) -> None:
    assert "no reply to compare" in chat("/spec compare")[1]
    chat("abc abc")
    assert "plain decoding: " in (err := chat("/spec compare")[1])
    assert "the same text" in err
    assert "plain decoding" in chat("/spec off")[1]
    chat("abc abc")
    assert chat.conversation.last is not None
    assert chat.conversation.last.stats.num_drafts == 0
    assert "n-gram" in chat("/spec on")[1]
    assert "/spec takes on, off or compare" in chat("/spec maybe")[1]


def test_stats_count_the_last_reply(chat: Chat) -> None:
    assert "There is no reply yet" in chat("/stats")[1]
    chat("one")
    chat("two")
    err = chat("/stats")[1]
    assert "tokens per round" in err
    assert "draft " in err
    assert chat.conversation.num_reused > 0
    assert f"reused: {chat.conversation.num_reused} tokens" in err


def test_a_chat_is_saved_and_loaded(chat: Chat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    chat("hello")
    assert "Saved to chat.json" in chat("/save")[1]
    content = json.loads((tmp_path / "chat.json").read_text())
    assert [message["role"] for message in content["messages"]] == ["user", "assistant"]
    assert content["settings"]["max_new_tokens"] == 8
    chat("/clear")
    assert "2 messages are loaded" in chat("/load chat.json")[1]
    assert chat.roles == "ua"
    assert "There is no file" in chat("/load nowhere.json")[1]
    assert "/load needs a file" in chat("/load")[1]
    assert "could not be written" in chat("/save no/such/folder.json")[1]


def test_running_hotter_than_measured_is_said_once(
    ngram_model: SpeculativeModel, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.support.calibrations import calibration

    from selfspec import SpeculativeModel

    chat = Chat(SpeculativeModel(ngram_model.loaded, ngram_model.plan, calibration=calibration()), capsys)
    assert "measured at" not in chat("hello")[1]
    chat("/set temperature=0.9")
    assert "the plan was measured at greedy decoding" in chat("hello")[1]
    assert "measured at" not in chat("hello")[1]


def test_errors_do_not_end_a_chat(chat: Chat) -> None:
    err = chat("x" * 600)[1]
    assert "context of 512" in err
    assert "/undo takes the last exchange back, /clear" in err
    assert chat("hello")[0]


def test_a_context_that_fills_within_a_reply_is_told_as_such(chat: Chat) -> None:
    chat("/set max_new_tokens=400")
    err = chat("x" * 300)[1]
    assert "The model's context is full. /undo" in err
    assert "/set max_new_tokens" not in err


def test_a_piped_message_that_fails_is_the_exit_code(selfspec_command: CommandLine, tiny_folder: Path) -> None:
    arguments = ("chat", "-m", tiny_folder, "--max-tokens", "4", "-q")
    run = selfspec_command(*arguments, stdin="x" * 600 + "\none\n")
    assert (run.code, len(run.out.splitlines())) == (1, 1)
    assert selfspec_command(*arguments, stdin="one\n/spec maybe\n").code == 2


@pytest.mark.parametrize("line", ["/exit", "!q", "/exit now", "/quit please", "!q x"])
def test_exit_ends_it_whatever_is_said_with_it(chat: Chat, line: str) -> None:
    assert not chat.session.handle(line)


def test_a_conversation_is_not_saved_over_what_the_chat_reads(
    selfspec_command: CommandLine, tiny_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "chat.jinja").write_text("{{ messages[-1].content }}")
    arguments = ("chat", "-m", tiny_folder, "--max-tokens", "4", "--chat-template", "chat.jinja")
    run = selfspec_command(*arguments, stdin="one\n/save chat.jinja\n")
    assert (run.code, "is the chat template as well" in run.err) == (2, True)
    assert (tmp_path / "chat.jinja").read_text() == "{{ messages[-1].content }}"


def test_spec_alone_says_what_it_takes(chat: Chat) -> None:
    assert "/spec takes on, off or compare, such as /spec off." in chat("/spec")[1]


def test_without_a_terminal_each_line_is_a_message(selfspec_command: CommandLine, tiny_folder: Path) -> None:
    run = selfspec_command(
        "chat", "-m", tiny_folder, "--max-tokens", "4", "-q", "--draft", "ngram", stdin="one\n\n/set seed=1\ntwo\n"
    )
    assert (run.code, run.err) == (0, "")
    assert len(run.out.splitlines()) >= 2
    assert selfspec_command("chat", "-m", tiny_folder, "-q", stdin="").out == ""


def test_exit_on_a_line_ends_a_piped_chat(selfspec_command: CommandLine, tiny_folder: Path) -> None:
    run = selfspec_command("chat", "-m", tiny_folder, "-q", stdin="/exit\none\n")
    assert (run.code, run.out) == (0, "")


@pytest.mark.parametrize("leaving", [EOFError, KeyboardInterrupt])
def test_typed_lines_end_with_ctrl_d_or_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], leaving: type[BaseException]
) -> None:
    typed = iter(["one", "two"])

    def ask(prompt: str) -> str:
        assert prompt == PROMPT
        try:
            return next(typed)
        except StopIteration:
            raise leaving from None

    monkeypatch.setattr("builtins.input", ask)
    assert list(typed_lines()) == ["one", "two"]
    assert capsys.readouterr().out == "\n"


def test_a_terminal_is_asked_for_lines(
    selfspec_command: CommandLine, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = iter(["hello", "/exit"])
    monkeypatch.setattr(Terminal, "is_interactive", property(lambda self: True))
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed))
    run = selfspec_command("chat", "-m", tiny_folder, "--max-tokens", "3")
    assert run.code == 0
    assert "/help lists the commands" in run.err
    assert run.out.strip()


def test_a_terminal_is_one_at_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Terminal().is_interactive
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(getattr(sys, stream), "isatty", lambda: True, raising=False)
    assert Terminal().is_interactive
