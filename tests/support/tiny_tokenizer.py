"""A tokenizer for tiny random models: any size, every id with a text of its own, no files needed."""

from __future__ import annotations

import string
from itertools import islice, product
from typing import TYPE_CHECKING

from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

if TYPE_CHECKING:
    from collections.abc import Iterator

SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<unk>")
CHARACTERS = string.ascii_lowercase + " " + string.ascii_uppercase + string.digits + string.punctuation + "\n"
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}\n"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


def tiny_tokenizer(
    vocab_size: int = 128, *, chat_template: str | None = CHAT_TEMPLATE, add_bos: bool = False
) -> PreTrainedTokenizerFast:
    """A fast tokenizer with exactly ``vocab_size`` ids; 0 to 3 are ``<pad>``, ``<s>``, ``</s>``, ``<unk>``.

    The next 96 ids are single characters (newline and printable ASCII), the rest pairs and triples of
    lower-case letters, merged from them. Text over these characters survives encoding and decoding unchanged.
    """
    characters = list(islice(CHARACTERS, max(0, vocab_size - len(SPECIAL_TOKENS))))
    num_merges = max(0, vocab_size - len(SPECIAL_TOKENS) - len(characters))
    merges = list(islice(_merges(), num_merges))
    texts = [*SPECIAL_TOKENS, *characters, *(left + right for left, right in merges)]
    backend = Tokenizer(models.BPE({text: i for i, text in enumerate(texts)}, merges, unk_token="<unk>"))
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    tokenizer.chat_template = chat_template
    if add_bos:
        _prepend_bos(tokenizer)
    return tokenizer


def _merges() -> Iterator[tuple[str, str]]:
    letters = string.ascii_lowercase
    yield from product(letters, repeat=2)
    yield from ((first + second, third) for first, second, third in product(letters, repeat=3))


def _prepend_bos(tokenizer: PreTrainedTokenizerFast) -> None:
    from tokenizers.processors import TemplateProcessing

    bos = ("<s>", tokenizer.bos_token_id)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[bos])
