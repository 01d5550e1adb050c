"""A small byte-pair tokenizer for the corpus, saved so that ``AutoTokenizer`` loads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

END_OF_TEXT = "<|endoftext|>"
VOCABULARY = 2048


def train_tokenizer(texts: Iterable[str], *, vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """Learns byte-level merges.

    Args:
        texts: What to learn from.
        vocabulary: Number of ids: small, so that the head costs little beside thin layers.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END_OF_TEXT, pad_token=END_OF_TEXT)


def encode(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> torch.Tensor:
    """All texts in a row, an end of text behind each.

    Returns:
        ``(num_tokens,)`` int64.
    """
    end = tokenizer.eos_token_id
    rows = tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    return torch.tensor([token for row in rows for token in (*row, end)])
