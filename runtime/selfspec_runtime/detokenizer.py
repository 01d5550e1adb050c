"""Turns committed tokens into text as they come, never splitting a character."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

REPLACEMENT = "\ufffd"


class Detokenizer:
    """Emits text whose concatenation equals the decoding of all tokens at once, if their bytes are characters.

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
        piece = self._fresh()
        if not piece or piece.endswith(REPLACEMENT):
            return ""
        self._window_start, self._emitted_to = self._emitted_to, len(self._ids)
        return self._emit(piece)

    def finish(self) -> str:
        """Returns what was held back; to be called once, after the last token."""
        return self._emit(self._fresh())

    def _fresh(self) -> str:
        """The text of what was not emitted yet, decoded after what was, on which a leading space depends."""
        before = self._decode(self._window_start, self._emitted_to)
        now = self._decode(self._window_start, len(self._ids))
        if now.startswith(before):
            return now[len(before) :]
        # Bytes that turn out to be no character change how the bytes before them are shown, and those are out.
        return self._decode(self._emitted_to, len(self._ids))

    def _emit(self, piece: str) -> str:
        self._text += piece
        return piece

    def _decode(self, start: int, stop: int) -> str:
        ids = self._ids[start:stop]
        return decode_exactly(self.tokenizer, ids, skip_special_tokens=self.skip_special_tokens) if ids else ""


def decode_exactly(tokenizer: PreTrainedTokenizerBase, token_ids: list[int], *, skip_special_tokens: bool) -> str:
    """The text of tokens without the removal of spaces before punctuation that some configurations ask for.

    That removal rewrites what was said, and depends on tokens that may come later.
    """
    text = tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False)
    return str(text)
