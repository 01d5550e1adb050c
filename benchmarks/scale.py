"""How much is measured: the sizes of a real run, and those of a rehearsal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: Qwen2-1.5B.
LARGE_SHAPE: dict[str, Any] = {
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
PLANTED_SHAPE: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
}
TINY_SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
}


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Sizes.

    Attributes:
        prompts: Prompts in a row; five and more give intervals.
        tokens: New tokens a run.
        large_prompts: Prompts for the large shape.
        large_tokens: New tokens a run for the large shape.
        repeats: Mirrored blocks per prompt, two runs each.
        passes: Times that each pass is timed.
        contexts: Positions at which passes are timed.
        planted: Shape of the planted model.
        large: Shape of the large model.
        reduced_vocabulary: Tokens of the large model's reduced draft head.
        bandwidth_bytes: Size of the tensor that is read for the bandwidth.
        compile_limit_s: Longest that compiling may take.
        is_quick: Whether this is a rehearsal on tiny models, whose times mean nothing.
    """

    prompts: int = 6
    tokens: int = 32
    large_prompts: int = 5
    large_tokens: int = 16
    repeats: int = 1
    passes: int = 15
    contexts: tuple[int, ...] = (64, 512)
    planted: dict[str, Any]
    large: dict[str, Any]
    reduced_vocabulary: int = 32_768
    bandwidth_bytes: int = 2**30
    compile_limit_s: float = 120.0
    is_quick: bool = False


FULL = Scale(planted=PLANTED_SHAPE, large=LARGE_SHAPE)
QUICK = Scale(
    prompts=2,
    tokens=6,
    large_prompts=2,
    large_tokens=6,
    passes=2,
    contexts=(8, 16),
    planted={**PLANTED_SHAPE, **TINY_SHAPE, "head_dim": 16, "num_hidden_layers": 8, "vocab_size": 512},
    large={**LARGE_SHAPE, **TINY_SHAPE, "vocab_size": 256},
    reduced_vocabulary=96,
    bandwidth_bytes=2**22,
    compile_limit_s=0.0,
    is_quick=True,
)
