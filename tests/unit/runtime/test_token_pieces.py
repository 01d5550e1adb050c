from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from selfspec_runtime.token_pieces import TokenPieces, visible_bytes


def byte_level() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({character: index for index, character in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")


class Stub:
    """A SentencePiece vocabulary, as its tokenizer shows it."""

    all_special_ids = (0,)
    tokens = ("<s>", "▁the", "ing", "<0xF0>", "▁", "a")

    def convert_ids_to_tokens(self, token_id: int) -> str | None:
        return self.tokens[token_id] if token_id < len(self.tokens) else None

    def decode(self, ids: list[int], **_: Any) -> str:
        token = self.tokens[ids[0]]
        return "\ufffd" if token.startswith("<0x") else token.replace("▁", " ").removeprefix(" ")


def test_half_an_emoji_is_shown_byte_by_byte() -> None:
    tokenizer = byte_level()
    pieces = TokenPieces(tokenizer)
    ids = tokenizer("é😀")["input_ids"]
    assert [pieces(i) for i in ids] == ["⟨0xC3⟩", "⟨0xA9⟩", "⟨0xF0⟩", "⟨0x9F⟩", "⟨0x98⟩", "⟨0x80⟩"]


def test_whole_characters_are_text() -> None:
    tokenizer = byte_level()
    pieces = TokenPieces(tokenizer)
    assert [pieces(i) for i in tokenizer("a \n")["input_ids"]] == ["a", " ", "\n"]
    assert pieces(tokenizer.eos_token_id) == "<|end|>"


@pytest.mark.parametrize(
    ("token_id", "piece"), [(0, "<s>"), (1, " the"), (2, "ing"), (3, "⟨0xF0⟩"), (4, " "), (9, "⟨9⟩")]
)
def test_sentencepiece_tokens_keep_their_space(token_id: int, piece: str) -> None:
    assert TokenPieces(Stub())(token_id) == piece


def test_without_a_tokenizer_a_token_is_its_number() -> None:
    assert TokenPieces(None)(17) == "⟨17⟩"


@given(st.binary())
def test_no_byte_is_lost(data: bytes) -> None:
    shown = visible_bytes(data)
    raw = shown.encode()
    for byte in range(256):
        raw = raw.replace(f"⟨0x{byte:02X}⟩".encode(), bytes([byte]))
    assert raw == data


@given(st.text())
def test_whole_text_is_left_alone(text: str) -> None:
    assert visible_bytes(text.encode()) == text
