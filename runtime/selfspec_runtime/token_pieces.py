"""What a single token says, also where it is no whole character."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

REPLACEMENT = "\ufffd"
WORD_START = "▁"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenPieces:
    """The text of single tokens; what is no valid UTF-8 by itself is shown as ``⟨0xF0⟩``, a group per byte.

    A byte-level vocabulary stores bytes as printable characters (GPT-2), a SentencePiece one as ``<0xF0>``
    tokens and spaces as ``▁``; decoding one token alone loses the former and the latter.

    Args:
        tokenizer: The model's tokenizer, or None: then a token is shown by its number.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None) -> None:
        self._tokenizer = tokenizer
        self._special = frozenset(() if tokenizer is None else tokenizer.all_special_ids)
        self._known: dict[int, str] = {}

    def __call__(self, token_id: int) -> str:
        """The piece of one token."""
        if token_id not in self._known:
            self._known[token_id] = self._piece(token_id)
        return self._known[token_id]

    def _piece(self, token_id: int) -> str:
        if self._tokenizer is None:
            return f"⟨{token_id}⟩"
        token = self._tokenizer.convert_ids_to_tokens(token_id)
        if not isinstance(token, str):
            return f"⟨{token_id}⟩"
        if token_id in self._special:
            return token
        text = str(self._tokenizer.decode([token_id], skip_special_tokens=False, clean_up_tokenization_spaces=False))
        return _without_losses(token, text)


def _without_losses(token: str, text: str) -> str:
    byte = _BYTE_TOKEN.fullmatch(token)
    if byte is not None:
        return visible_bytes(bytes([int(byte[1], 16)]))
    if REPLACEMENT in text and all(character in _BYTE_OF for character in token):
        return visible_bytes(bytes(_BYTE_OF[character] for character in token))
    if token.startswith(WORD_START) and not text.startswith(" "):
        return f" {text}"
    return text


def visible_bytes(data: bytes) -> str:
    """UTF-8 decoded as far as it goes, each other byte as ``⟨0xF0⟩``."""
    text = data.decode("utf-8", "surrogateescape")
    return "".join(f"⟨0x{ord(c) - 0xDC00:02X}⟩" if 0xDC80 <= ord(c) <= 0xDCFF else c for c in text)


def _byte_alphabet() -> dict[str, int]:
    """The characters that byte-level vocabularies write for bytes: printable ones as they are, others from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + place): byte for place, byte in enumerate(rest)}


_BYTE_OF = _byte_alphabet()
