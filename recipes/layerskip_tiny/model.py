"""A Llama of many thin layers, and its forward pass with dropped layers and early exits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

MAX_POSITIONS = 1024


def new_model(*, vocabulary: int, num_layers: int, hidden: int, end_token: int) -> LlamaForCausalLM:
    """A model with random weights, from the default generator.

    Args:
        vocabulary: Number of ids.
        num_layers: Many, so that an exit after a fifth of them costs little.
        hidden: Width; a multiple of 64.
        end_token: Id of the end of a text.
    """
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=_intermediate(hidden),
        num_hidden_layers=num_layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        initializer_range=0.04,
        bos_token_id=end_token,
        eos_token_id=end_token,
        pad_token_id=end_token,
    )
    model = LlamaForCausalLM(config)
    _shrink_outputs(model)
    return model


def _intermediate(hidden: int) -> int:
    return -(-hidden * 8 // 3 // 64) * 64


def _shrink_outputs(model: LlamaForCausalLM) -> None:
    """Keeps the variance of the residual stream whatever the depth."""
    factor = 1 / math.sqrt(2 * len(model.model.layers))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(factor)
            layer.mlp.down_proj.weight.mul_(factor)


def exit_losses(
    model: LlamaForCausalLM, token_ids: Tensor, *, weights: Mapping[int, float], dropout: Sequence[float]
) -> dict[int, Tensor]:
    """Mean next-token losses at exits, all through the model's own norm and head.

    Args:
        model: The model.
        token_ids: ``(sequences, length + 1)`` int64.
        weights: Exits (layers run before them) that take part.
        dropout: One probability for each layer, drawn for each sequence.

    Returns:
        Cross entropy in nats for each exit.
    """
    inputs, labels = token_ids[:, :-1], token_ids[:, 1:].flatten()
    hidden = model.model.embed_tokens(inputs)
    positions = model.model.rotary_emb(hidden, torch.arange(inputs.shape[1])[None])
    losses: dict[int, Tensor] = {}
    for index, layer in enumerate(model.model.layers):
        kept = torch.rand(hidden.shape[0]) >= dropout[index]
        hidden = _through(layer, hidden, positions, kept)
        if weights.get(index + 1):
            logits = model.lm_head(model.model.norm(hidden)).flatten(0, 1)
            losses[index + 1] = functional.cross_entropy(logits.float(), labels)
    return losses


def _through(layer: torch.nn.Module, hidden: Tensor, positions: tuple[Tensor, Tensor], kept: Tensor) -> Tensor:
    """Runs a layer on the sequences that keep it; the others pass it by."""
    if bool(kept.all()):
        return _run(layer, hidden, positions)
    rows = kept.nonzero().flatten()
    if not len(rows):
        return hidden
    return hidden.index_copy(0, rows, _run(layer, hidden[rows], positions))


def _run(layer: torch.nn.Module, hidden: Tensor, positions: tuple[Tensor, Tensor]) -> Tensor:
    output = layer(hidden, position_embeddings=positions)
    assert isinstance(output, torch.Tensor)
    return output


@torch.no_grad()
def agreement_by_exit(model: LlamaForCausalLM, token_ids: Tensor) -> tuple[float, ...]:
    """Share of positions at which an exit's most likely token is the whole model's.

    Args:
        model: The model.
        token_ids: ``(sequences, length)`` int64.

    Returns:
        One share for each exit after 1 to ``num_layers - 1`` layers.
    """
    output = model(token_ids, output_hidden_states=True, use_cache=False)
    chosen = output.logits.argmax(-1)
    early = output.hidden_states[1:-1]
    exits = (model.lm_head(model.model.norm(hidden)).argmax(-1) for hidden in early)
    return tuple(float((exit_choice == chosen).float().mean()) for exit_choice in exits)
