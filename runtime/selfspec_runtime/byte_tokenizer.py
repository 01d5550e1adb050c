"""A tokenizer for a model that has none: every byte is a token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

UNKNOWN = "<unk>"


def byte_tokenizer(vocab_size: int) -> PreTrainedTokenizerBase:
    """Ids 1 on are bytes, letters first; id 0 stands for every byte that a small vocabulary leaves out.

    Args:
        vocab_size: The model's; 257 and more hold all bytes.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), key=_importance)
    texts = [UNKNOWN, *alphabet][:vocab_size]
    backend = Tokenizer(models.BPE({text: index for index, text in enumerate(texts)}, [], unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token=UNKNOWN)


def _importance(character: str) -> tuple[bool, bool, str]:
    """ASCII letters before the space (``Ġ``) and the newline (``Ċ``), then the rest."""
    return not (character.isascii() and character.isalnum()), character not in "ĠĊ.,", character
