"""Prompts cut from held-out files."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from transformers import PreTrainedTokenizerFast

    from .corpus import Source

PROMPT_TOKENS = 96


def cut_prompts(sources: Sequence[Source], tokenizer: PreTrainedTokenizerFast, *, number: int, seed: int) -> list[str]:
    """Pieces of files that end at the end of a line, at most one a file unless there are too few files.

    Args:
        sources: Held-out files.
        tokenizer: Says how long a piece is.
        number: Pieces wanted.
        seed: Where they are cut.
    """
    generator = random.Random(seed)
    order = generator.sample(list(sources), len(sources))
    return [_piece(order[index % len(order)].text, tokenizer, generator) for index in range(number)]


def _piece(text: str, tokenizer: PreTrainedTokenizerFast, generator: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    last = generator.randrange(len(lines) // 3, len(lines))
    ids = tokenizer("".join(lines[: last + 1])[-8 * PROMPT_TOKENS :], add_special_tokens=False)["input_ids"]
    return str(tokenizer.decode(ids[-PROMPT_TOKENS:]))


def write_prompts(path: Path, prompts: Sequence[str]) -> None:
    """Writes a file that ``--prompts`` reads."""
    rows = (json.dumps({"kind": "python", "prompt": prompt}, ensure_ascii=False) for prompt in prompts)
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")


def windows(tokens: torch.Tensor, *, number: int, length: int, generator: torch.Generator) -> torch.Tensor:
    """Random pieces of a row of tokens.

    Returns:
        ``(number, length)`` int64.
    """
    starts = torch.randint(0, len(tokens) - length + 1, (number,), generator=generator)
    return torch.stack([tokens[start : start + length] for start in starts.tolist()])
