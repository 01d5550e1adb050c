from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfspec.cli.chat_commands import (
    ALIASES,
    NAMES,
    Command,
    Input,
    Say,
    Unknown,
    help_text,
    parse_line,
    parse_settings,
)
from selfspec_runtime.errors import UsageError


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("", None),
        ("  \n", None),
        ("hello\n", Say("hello")),
        ("h", Say("h")),
        ("exit", Say("exit")),
        ("/help", Command("help")),
        ("  /help  ", Command("help")),
        ("!help", Command("help")),
        ("/HELP", Command("help")),
        ("/quit", Command("exit")),
        ("/system be brief, please", Command("system", "be brief, please")),
        ("/system\tbe brief", Command("system", "be brief")),
        ("/ system", Unknown("/")),
        ("/set temperature=0.7", Command("set", "temperature=0.7")),
        ("//etc/hosts is a file", Say("/etc/hosts is a file")),
        ("!!important", Say("!important")),
        ("/hlep me", Unknown("/hlep")),
        ("!boo", Unknown("!boo")),
        ("/", Unknown("/")),
        ("a/b", Say("a/b")),
        ("  indented", Say("  indented")),
    ],
)
def test_a_line_means_one_thing(line: str, meant: Input | None) -> None:
    assert parse_line(line) == meant


@given(st.text())
def test_whatever_begins_like_a_command_is_never_sent_unless_escaped(text: str) -> None:
    meant = parse_line(f"/{text}")
    if isinstance(meant, Say):
        assert text.startswith("/")
        assert meant.text == f"/{text}".strip()[1:]


@given(st.text(min_size=1).filter(lambda text: text.strip()[:1] not in ("", "/", "!")))
def test_everything_else_is_sent(text: str) -> None:
    assert isinstance(parse_line(text), Say)


@pytest.mark.parametrize(
    ("argument", "settings"),
    [
        ("", {}),
        ("temperature=0.7", {"temperature": 0.7}),
        ("temperature = 1e-5", {"temperature": 1e-5}),
        ("top-k=40 top_p=0.9", {"top_k": 40, "top_p": 0.9}),
        ("stop=a=b", {"stop": "a=b"}),
        ('stop="two words"', {"stop": "two words"}),
        ('stop=["a", "b"] seed=3', {"stop": ["a", "b"], "seed": 3}),
        ("temperature=none", {"temperature": None}),
        ("mode=match", {"mode": "match"}),
    ],
)
def test_settings_are_read(argument: str, settings: dict[str, Any]) -> None:
    assert parse_settings(argument) == settings


@pytest.mark.parametrize("argument", ["temperature", "temperature 0.7", "=3", "temperature=0.7 hot"])
def test_what_is_no_assignment_is_refused(argument: str) -> None:
    with pytest.raises(UsageError, match=r"is not understood\. Write /set temperature=0.7"):
        parse_settings(argument)


def test_help_names_every_command() -> None:
    assert all(f"/{name}" in help_text() for name in NAMES)
    assert set(ALIASES.values()) <= set(NAMES)
