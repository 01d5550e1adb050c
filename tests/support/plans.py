"""One plan for every draft source, for models of four layers and a hidden size of 64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from tests.support.tiny_models import VOCAB_SIZE

from selfspec_runtime.draft_head import RANKS_NAME
from selfspec_runtime.drafts.corpus import PLACES_NAME, TOKENS_NAME, corpus_arrays
from selfspec_runtime.drafts.early_exit import exit_head_name, factor_names
from selfspec_runtime.plan import DraftPlan

if TYPE_CHECKING:
    from torch import Tensor

SOURCES: dict[str, dict[str, Any]] = {
    "early_exit": {"kind": "early_exit", "exit_layer": 2},
    "linear_head": {"kind": "early_exit", "exit_layer": 1, "head": "linear"},
    "low_rank": {"kind": "early_exit", "exit_layer": 2, "head": "linear", "rank": 5, "vocab_size": 64},
    "layer_skip": {"kind": "layer_skip", "skip": {"attention": [1, 3], "mlp": [3]}},
    "quantized": {"kind": "quantized", "quantize_head": True, "skip": {"attention": [3]}},
    "ngram": {"kind": "ngram"},
    "suffix": {"kind": "suffix", "corpus": True},
    "ngram_first": {"kind": "ngram_first", "then": {"kind": "early_exit", "exit_layer": 3}},
    "tree": {
        "kind": "tree",
        "chain": {"kind": "early_exit", "exit_layer": 2},
        "max_branches": 3,
        "branch_threshold": 0.9,
    },
}
CONTROLLERS: dict[str, dict[str, Any]] = {
    "fixed": {"kind": "fixed", "num_draft_tokens": 4},
    "confidence": {"kind": "confidence", "num_draft_tokens": 7, "draft_confidence_threshold": 0.3},
}


def plan_of(source: str, controller: str = "fixed") -> DraftPlan:
    """The plan with these two parts."""
    return DraftPlan.model_validate({"source": SOURCES[source], "controller": CONTROLLERS[controller]})


def exit_heads(hidden_size: int = 64, *, num_layers: int = 4, vocab_size: int = VOCAB_SIZE) -> dict[str, Tensor]:
    """What a calibration file would hold, at random: heads for every exit, whole and of rank 8, ranks, and texts."""
    generator = torch.Generator().manual_seed(7)
    scale = 0.3 * hidden_size**-0.5
    arrays = {}
    for layer in range(1, num_layers):
        arrays[exit_head_name(layer)] = scale * torch.randn(hidden_size, hidden_size, generator=generator)
        down, up = factor_names(layer)
        arrays[down] = scale * torch.randn(8, hidden_size, generator=generator)
        arrays[up] = torch.randn(hidden_size, 8, generator=generator)
    arrays[RANKS_NAME] = torch.randperm(vocab_size, generator=generator).int()
    tokens, places = corpus_arrays(torch.randint(0, vocab_size, (4, 300), generator=generator).tolist())
    return arrays | {TOKENS_NAME: torch.from_numpy(tokens), PLACES_NAME: torch.from_numpy(places)}
