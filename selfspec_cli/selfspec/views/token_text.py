"""Tokens made visible: whatever a model says, nothing of it is lost, reorders its surroundings, or acts."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

from markupsafe import Markup

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_CHARACTERS = 80
_MARKS = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍", "\x7f": "␡", "\u00a0": "⍽"}
_BYTES = re.compile(r"(?:⟨0x[0-9A-F]{2}⟩)+")
_BYTE = re.compile(r"⟨0x([0-9A-F]{2})⟩")
_UNSEEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff]")
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def visible(piece: str, *, limit: int = MAX_CHARACTERS) -> str:
    """One token on one line: every space, control and direction mark has a sign of its own.

    Args:
        piece: The token's text.
        limit: Characters shown; what is cut is counted.
    """
    return _signs(_cut(piece, limit), keep="") or "∅"


def running(piece: str, *, limit: int = MAX_CHARACTERS) -> str:
    """One token within running text: single spaces stay, a line break follows its sign."""
    shown = _cut(piece, limit)
    if shown and not shown.strip(" "):
        return "␣" * (len(shown) - 1) + ("␣" if len(shown) > 1 else " ")
    return _signs(shown, keep=" ").replace("⏎", "⏎\n") or "∅"


def token_html(piece: str) -> Markup:
    """The same as HTML: escaped, and isolated so that right-to-left text turns nothing around."""
    return Markup("<bdi>{}</bdi>").format(running(piece))


def visible_html(piece: str) -> Markup:
    """:func:`visible` as HTML."""
    return Markup("<bdi>{}</bdi>").format(visible(piece))


def scrubbed(html: Markup) -> Markup:
    """HTML in which every control, direction mark and lone surrogate is shown as a sign; line feeds stay.

    For text that comes from files: tokens went through :func:`visible` or :func:`running` before.
    """
    return Markup(_UNSEEN.sub(lambda found: _sign(found[0]), html))


def visible_line(text: str) -> str:
    """A line of words, such as a file's, with every hidden character shown as a sign; spaces stay."""
    return _signs(text, keep=" ")


def with_whole_characters(pieces: Sequence[str]) -> list[str]:
    """Tokens that are parts of a character, with the character beside the last of them."""
    shown, pending = [], b""
    for piece in pieces:
        whole = _BYTES.fullmatch(piece)
        pending = pending + _bytes_of(piece) if whole else b""
        character = _decoded(pending)
        shown.append(f"{piece}{character}" if whole and character else piece)
        pending = b"" if character or len(pending) > 3 else pending
    return shown


def _bytes_of(piece: str) -> bytes:
    return bytes(int(byte, 16) for byte in _BYTE.findall(piece))


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return ""


def _cut(piece: str, limit: int) -> str:
    if len(piece) <= limit:
        return piece
    return f"{piece[:limit]}… ({len(piece):,} characters)"


def _signs(text: str, *, keep: str) -> str:
    parts = _BYTES.split(text)
    groups = [f"⟨{' '.join(f'0x{byte}' for byte in _BYTE.findall(run))}⟩" for run in _BYTES.findall(text)]
    shown = ["".join(c if c in keep else _sign(c) for c in part) for part in parts]
    return "".join(part + group for part, group in zip(shown, [*groups, ""], strict=True))


def _sign(character: str) -> str:
    if character in _MARKS:
        return _MARKS[character]
    if ord(character) < 0x20:
        return chr(0x2400 + ord(character))
    if unicodedata.category(character) in _HIDDEN:
        return f"⟨U+{ord(character):04X}⟩"
    return character
