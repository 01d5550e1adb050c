"""Tiny models as folders on disk, as a user has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.tiny_models import build_model, tiny_config
from tests.support.tiny_tokenizer import tiny_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedConfig

PACKABLE = {"intermediate_size": 128, "num_hidden_layers": 2}
"""Every linear weight is a multiple of 32 x 64, as bitsandbytes' CPU kernel wants it."""


def save_model(folder: Path, family: str = "llama", *, seed: int = 0, dtype: str = "float32", **overrides: Any) -> Path:
    """Saves a tiny random model with its tokenizer; ``overrides`` go into its configuration."""
    config = tiny_config(family, **{"num_hidden_layers": 2, **overrides})
    model = build_model(config, attention="eager", seed=seed)
    model.generation_config.eos_token_id = 2
    model.to(dtype=_torch_dtype(dtype)).save_pretrained(folder)
    tiny_tokenizer(config.vocab_size).save_pretrained(folder)
    return folder


def _torch_dtype(name: str) -> Any:
    import torch

    return getattr(torch, name)


def save_config(folder: Path, config: PreTrainedConfig) -> Path:
    """Saves a configuration alone: enough to be refused, not enough to be loaded."""
    config.save_pretrained(folder)
    return folder
