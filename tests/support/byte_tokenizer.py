"""Tokenizers whose tokens split characters, as those of most language models do."""

from __future__ import annotations

from functools import cache

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = ("<pad>", "<s>", "</s>")
#: Merged in this order: words, a space with its word, and the first three bytes of most emoji.
MERGED = ("th", "the", " t", "an", "in", " a", "er", "\n\n")


@cache
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Ids 0 to 2 are special, 3 to 258 single bytes (``3 + byte``), the rest merges."""
    shown = _byte_characters()
    merges = [(text[:-1], text[-1]) for text in (_spelt(text, shown) for text in MERGED)]
    first, second, third = (shown[byte] for byte in "😀".encode()[:3])
    merges += [(first, second), (first + second, third)]
    texts = [*SPECIAL_TOKENS, *(shown[byte] for byte in range(256)), *(left + right for left, right in merges)]
    backend = Tokenizer(models.BPE({text: index for index, text in enumerate(texts)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>", extra_special_tokens=[]
    )


@cache
def metaspace_tokenizer() -> PreTrainedTokenizerFast:
    """Marks a space before a word, drops the first one of a text, and falls back to bytes, as Llama 2 does."""
    texts = ["<unk>", "▁", "▁a", "b", "▁b", ".", *(f"<0x{byte:02X}>" for byte in range(256))]
    backend = Tokenizer(models.BPE({text: index for index, text in enumerate(texts)}, [], unk_token="<unk>"))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


def _byte_characters() -> dict[int, str]:
    """The printable character that stands for each byte in a byte-level vocabulary."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + index) for index, byte in enumerate(others)}


def _spelt(text: str, shown: dict[int, str]) -> str:
    return "".join(shown[byte] for byte in text.encode())
