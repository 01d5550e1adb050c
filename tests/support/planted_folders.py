"""Planted models as folders on disk, with prompts for them: what a user would hand to calibrate."""

from __future__ import annotations

import json
import random
import string
from typing import TYPE_CHECKING

import torch
from tests.support.tiny_models import build_model, hopeless, planted, planted_skip, tiny_config
from tests.support.tiny_tokenizer import tiny_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel

VOCAB_SIZE = 512
EXIT_LAYER = 3
SKIPPED = {"attention": (2, 5), "mlp": (4, 6)}
SIZES = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": VOCAB_SIZE,
}

#: Sizes for tests that read no clock.
SMALL = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


def planted_exit(**sizes: int) -> PreTrainedModel:
    """A model whose text nothing but its own first layers can guess: the exit at 3 equals the full model."""
    return planted(hopeless(_base(sizes)), exit_layer=EXIT_LAYER)


def planted_skips(**sizes: int) -> PreTrainedModel:
    """A model of which four named sub-layers contribute nothing."""
    return planted_skip(hopeless(_base(sizes)), **SKIPPED)


def hopeless_model(**sizes: int) -> PreTrainedModel:
    """A model that no draft can guess."""
    return hopeless(_base(sizes))


def save(model: PreTrainedModel, folder: Path, *, dtype: torch.dtype = torch.bfloat16) -> Path:
    """Saves a model, its tokenizer, and ``prompts.jsonl`` beside them."""
    model.to(dtype).save_pretrained(folder)
    tiny_tokenizer(VOCAB_SIZE).save_pretrained(folder)
    write_prompts(folder / "prompts.jsonl")
    return folder


def write_prompts(path: Path, *, count: int = 20, length: int = 60) -> None:
    """Random letters, of two kinds."""
    draw = random.Random(0)
    rows = (
        {"kind": kind, "text": "".join(draw.choices(string.ascii_lowercase, k=length))}
        for index in range(count)
        for kind in (("even", "odd")[index % 2],)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _base(sizes: dict[str, int]) -> PreTrainedModel:
    return build_model(tiny_config("llama", **{**SIZES, **sizes}), attention="sdpa")
