"""Restores what is lost when transformers rebuilds a tokenizer from a GGUF file.

The file names its pre-tokenizer (``tokenizer.ggml.pre``), and transformers 5 takes GPT-2's for all byte-level
vocabularies. Where the model was trained with digits split off, runs of spaces before numbers would come out as
other ids than it has ever seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenizers import pre_tokenizers

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedTokenizerBase

DIGIT_SPLITTERS = frozenset({"smollm", "starcoder", "refact"})


def restore_pre_tokenizer(tokenizer: PreTrainedTokenizerBase, gguf: Path) -> None:
    """Splits off digits in a tokenizer that was just loaded from ``gguf``, if the file says so."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel):
        return
    if _named_pre_tokenizer(gguf) in DIGIT_SPLITTERS:
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])


def _named_pre_tokenizer(gguf: Path) -> str | None:
    from gguf import GGUFReader

    field = GGUFReader(gguf).fields.get("tokenizer.ggml.pre")
    return None if field is None else bytes(field.parts[-1]).decode("utf-8", errors="replace")
