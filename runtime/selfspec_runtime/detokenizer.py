"""Turns committed tokens into text as they come, never splitting a character."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

REPLACEMENT = "\ufffd"


class Detokenizer:
    """Emits text whose concatenation equals the decoding of all tokens at once.

    A token alone may be half a character (emoji, CJK) or lose its leading space; so the text from a safe point
    on is decoded anew, and only what can no longer change is emitted.

    Args:
        tokenizer: The model's tokenizer.
        skip_special_tokens: Whether markers such as ``<|im_end|>`` are left out of the text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, skip_special_tokens: bool = True) -> None:
        self.tokenizer = tokenizer
        self.skip_special_tokens = skip_special_tokens
        self._ids: list[int] = []
        self._window_start = 0
        self._emitted_to = 0
        self._text = ""

    @property
    def text(self) -> str:
        """Everything emitted so far."""
        return self._text

    def push(self, token_ids: list[int]) -> str:
        """Takes tokens in and returns the text that they complete."""
        self._ids.extend(token_ids)
        before = self._decode(self._window_start, self._emitted_to)
        now = self._decode(self._window_start, len(self._ids))
        if now.endswith(REPLACEMENT) or len(now) <= len(before) or not now.startswith(before):
            return ""
        self._window_start, self._emitted_to = self._emitted_to, len(self._ids)
        return self._emit(now[len(before) :])

    def finish(self) -> str:
        """Returns what was held back; to be called once, after the last token."""
        whole = self._decode(0, len(self._ids))
        if not whole.startswith(self._text):
            return ""
        return self._emit(whole[len(self._text) :])

    def _emit(self, piece: str) -> str:
        self._text += piece
        return piece

    def _decode(self, start: int, stop: int) -> str:
        ids = self._ids[start:stop]
        return str(self.tokenizer.decode(ids, skip_special_tokens=self.skip_special_tokens)) if ids else ""
