"""What every layer of the model would have said at every generated token (the logit lens, nostalgebraist 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from selfspec_runtime.law import argmax_tokens
from selfspec_runtime.program import LayerProgram
from selfspec_runtime.stubs import HandOut

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from selfspec_runtime.cache import KVCache
    from selfspec_runtime.target import Target

PROMPT_CHUNK = 512
LOGITS_AT_ONCE = 1 << 24
"""Numbers in one block of logits, whatever the vocabulary: 32 MiB in bfloat16."""
ROWS_AT_ONCE = 32
"""Rows of it that are looked at together, in float32: they stay in a processor's cache."""
LOWEST_SCORE = -60.0
"""Below the largest logit; e to that power adds nothing, and what is lower would be denormal, which is slow."""


@dataclass(frozen=True)
class LayerReadings:
    """Readings at ``T`` generated tokens after each of ``L`` layers.

    Attributes:
        layers_agree: bool ``[L, T]``: whether the likeliest token after layer l + 1 is the one that was said.
        top_ids: int32 ``[L, T, k]``, the likeliest tokens, lowest id first among equals.
        top_probs: float16 ``[L, T, k]``, their probabilities at temperature 1.
        target_probs: float32 ``[T]``, the full model's probability of the token at temperature 1.
        questioned_probs: The full model's probability of the tokens that were asked for, by place.
    """

    layers_agree: NDArray[np.bool_]
    top_ids: NDArray[np.int32]
    top_probs: NDArray[np.float16]
    target_probs: NDArray[np.float32]
    questioned_probs: dict[int, float]


@torch.no_grad()
def read_layers(
    target: Target,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    *,
    questioned: Mapping[int, int],
    top_k: int = 3,
) -> LayerReadings:
    """Runs the model once over a finished generation, and final norm and head after every layer.

    A block of rows is held at a time: its hidden states of every layer, and the logits of one layer.

    Args:
        target: The model.
        prompt_ids: At least one token id.
        output_ids: ``T`` generated ids, at least one.
        questioned: Other tokens whose probability is asked for, by their place among the generated ones.
        top_k: Candidates kept per layer and token.

    Returns:
        The readings, on the CPU.
    """
    ids = torch.tensor([*prompt_ids, *output_ids[:-1]], device=target.device)
    said = torch.tensor(output_ids, device=target.device)
    start = len(prompt_ids) - 1
    cache = target.new_cache(capacity=len(ids))
    for first, chunk in _chunks(ids[:start], PROMPT_CHUNK):
        target.advance(chunk, cache, start=first, program=target.full)
    reader = _Reader(target, cache, top_k)
    size = _block_size(target)
    blocks = []
    for first, chunk in _chunks(ids[start:], size):
        asked = {place - first: token for place, token in questioned.items() if first <= place < first + size}
        blocks.append(reader.block(chunk, start + first, said[first : first + size], asked))
    return _joined(blocks, size)


class _Reader:
    """Reads blocks of rows; what it runs is built once."""

    def __init__(self, target: Target, cache: KVCache, top_k: int) -> None:
        self._target, self._cache, self._top_k = target, cache, top_k
        self._outs = [HandOut(layer, target.programs.output_length) for layer in target.full.modules]
        self._watching = LayerProgram(tuple(self._outs))
        self._onward, self._into = target.programs.resume_at(target.num_layers)

    def block(self, chunk: Tensor, start: int, said: Tensor, questioned: Mapping[int, int]) -> LayerReadings:
        self._target.advance(chunk, self._cache, start=start, program=self._watching)
        ids, probs = [], []
        for out in self._outs:
            self._into.hidden, out.hidden = out.hidden, None
            logits = self._target.logits(chunk, self._cache, start=start, program=self._onward)
            layer_ids, layer_probs = _likeliest(logits, self._top_k)
            ids.append(layer_ids)
            probs.append(layer_probs)
        top_ids = torch.stack(ids)
        rows, tokens = list(questioned), list(questioned.values())
        return LayerReadings(
            layers_agree=(top_ids[..., 0] == said).cpu().numpy(),
            top_ids=top_ids.to(torch.int32).cpu().numpy(),
            top_probs=torch.stack(probs).to(torch.float16).cpu().numpy(),
            target_probs=_probs_at(logits, list(range(len(said))), said.tolist()),
            questioned_probs=dict(zip(rows, _probs_at(logits, rows, tokens).tolist(), strict=True)),
        )


def _likeliest(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Ids and probabilities ``[n, k]``; among equal logits the lowest id first, as decoding chooses."""
    parts = [_likeliest_of_few(rows.float(), top_k) for _, rows in _chunks(logits, ROWS_AT_ONCE)]
    return torch.cat([ids for ids, _ in parts]), torch.cat([probs for _, probs in parts])


def _likeliest_of_few(scores: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    scores = scores - scores.amax(dim=-1, keepdim=True)
    mass = scores.clamp(min=LOWEST_SCORE).exp_().sum(dim=-1, keepdim=True)
    ids, values = [], []
    for _ in range(min(top_k, scores.shape[-1])):
        best = argmax_tokens(scores)[:, None]
        ids.append(best)
        values.append(scores.gather(-1, best))
        scores.scatter_(-1, best, -torch.inf)
    return torch.cat(ids, dim=-1), torch.cat(values, dim=-1).exp() / mass


def _probs_at(logits: Tensor, rows: list[int], token_ids: list[int]) -> NDArray[np.float32]:
    """Probabilities of single tokens, float32 ``[n]``; 0 for an id that the vocabulary does not have."""
    probs = np.zeros(len(rows), dtype=np.float32)
    for place, (row, token) in enumerate(zip(rows, token_ids, strict=True)):
        if 0 <= token < logits.shape[-1]:
            probs[place] = float(logits[row].float().softmax(dim=-1)[token])
    return probs


def _joined(blocks: Sequence[LayerReadings], size: int) -> LayerReadings:
    questioned = {
        number * size + row: prob for number, block in enumerate(blocks) for row, prob in block.questioned_probs.items()
    }
    return LayerReadings(
        layers_agree=np.concatenate([block.layers_agree for block in blocks], axis=1),
        top_ids=np.concatenate([block.top_ids for block in blocks], axis=1),
        top_probs=np.concatenate([block.top_probs for block in blocks], axis=1),
        target_probs=np.concatenate([block.target_probs for block in blocks]),
        questioned_probs=questioned,
    )


def _block_size(target: Target) -> int:
    vocab_size = int(target.model.get_input_embeddings().weight.shape[0])
    return max(8, min(256, LOGITS_AT_ONCE // vocab_size))


def _chunks(rows: Tensor, size: int) -> Iterator[tuple[int, Tensor]]:
    for first in range(0, rows.shape[0], size):
        yield first, rows[first : first + size]
