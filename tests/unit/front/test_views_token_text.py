from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.html_checks import assert_harmless, shown_text
from tests.support.traces import HOSTILE

from selfspec.views.token_text import MAX_CHARACTERS, running, token_html, visible, with_whole_characters


@pytest.mark.parametrize(
    ("piece", "shown"),
    [
        (" the", "␣the"),
        ("\n", "⏎"),
        ("\t\t", "⇥⇥"),
        ("\x00", "␀"),
        ("\x1b[0m", "␛[0m"),
        ("\u202eabc", "⟨U+202E⟩abc"),
        ("\ud83d", "⟨U+D83D⟩"),
        ("\u2028", "⟨U+2028⟩"),
        ("⟨0xF0⟩⟨0x9F⟩", "⟨0xF0 0x9F⟩"),
        ("é", "é"),
        ("", "∅"),
    ],
)
def test_every_character_has_a_sign(piece: str, shown: str) -> None:
    assert visible(piece) == shown


@pytest.mark.parametrize(
    ("piece", "shown"), [(" the", " the"), (" ", " "), ("   ", "␣␣␣"), ("a\n", "a⏎\n"), ("\n    ", "⏎\n    ")]
)
def test_running_text_keeps_spaces_and_breaks_lines(piece: str, shown: str) -> None:
    assert running(piece) == shown


def test_long_tokens_are_cut_and_counted() -> None:
    shown = visible("x" * 10_000)
    assert shown.startswith("x" * MAX_CHARACTERS)
    assert shown.endswith("…␣(10,000␣characters)")


def test_half_characters_are_joined_at_the_last_part() -> None:
    pieces = ["a", "⟨0xF0⟩⟨0x9F⟩", "⟨0x98⟩", "⟨0x80⟩", "b", "⟨0xC3⟩", "c", "⟨0xFF⟩"]
    joined = with_whole_characters(pieces)
    assert joined == [*pieces[:3], "⟨0x80⟩😀", *pieces[4:]]


@given(st.lists(st.binary(min_size=1, max_size=2), max_size=12))
def test_joining_only_adds(parts: list[bytes]) -> None:
    pieces = ["".join(f"⟨0x{byte:02X}⟩" for byte in part) for part in parts]
    joined = with_whole_characters(pieces)
    assert all(shown.startswith(piece) for shown, piece in zip(joined, pieces, strict=True))


@given(st.text(st.characters()))
def test_nothing_hidden_is_left(piece: str) -> None:
    hidden = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    assert not any(unicodedata.category(character) in hidden for character in visible(piece))
    assert not any(unicodedata.category(c) in hidden for c in running(piece).replace("\n", ""))
    assert running(piece).count("\n") == piece[:MAX_CHARACTERS].count("\n")


@pytest.mark.parametrize("piece", HOSTILE)
def test_html_says_what_the_token_says(piece: str) -> None:
    html = str(token_html(piece))
    assert_harmless(html)
    assert shown_text(html) == running(piece)
