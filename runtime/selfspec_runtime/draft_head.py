"""A head over the tokens that a model says most often.

On a small model with a large vocabulary the head is a fifth of the weights, and a draft pays for it at every token
(FR-Spec, Zhao et al. 2502.14856). A draft may leave tokens out: any draft law is lossless, since the target verifies
with its own head, and a token that the draft cannot say is one that it does not get accepted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch
from torch import nn

from selfspec_runtime.errors import PlanError
from selfspec_runtime.fast_linear import can_be_fast, dense_weight, fast_linear
from selfspec_runtime.quantization import CPU_ROW_BLOCK, quantized_modules

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from selfspec_runtime.architecture import DecoderParts
    from selfspec_runtime.target import Target

#: Array of a calibration: token ids, the most frequent first, int32 ``[R]``.
RANKS_NAME = "vocabulary_ranks"


class ReducedHead(nn.Module):
    """Some rows of a model's head.

    The model's own logic after its head (soft-capping, scaling) works on single logits and is none the wiser.

    Args:
        linear: Maps ``[..., hidden]`` to ``[..., n]``.
        token_ids: The rows' tokens, int64 ``[n]``, ascending.
        vocab_size: Width of the model's own logits.
        num_bytes: Memory that the rows and the ids hold.
    """

    def __init__(self, linear: nn.Module, token_ids: Tensor, *, vocab_size: int, num_bytes: int) -> None:
        super().__init__()
        self.linear = linear
        self.register_buffer("token_ids", token_ids, persistent=False)
        self.vocab_size = vocab_size
        self.num_bytes = num_bytes

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Maps ``[..., hidden]`` to ``[..., n]``."""
        logits: Tensor = self.linear(hidden_states)
        return logits

    def widened(self, logits: Tensor) -> Tensor:
        """The model's logits ``[rows, n]`` at their places in ``[rows, vocab]``; -inf for every other token."""
        wide = logits.new_full((logits.shape[0], self.vocab_size), -torch.inf)
        ids: Any = self.token_ids
        return wide.index_copy_(1, ids, logits)


class ReducedHeads:
    """Makes heads of one model; equal ones are made once and shared while any draft uses them.

    Args:
        parts: The model's parts.
        dtype: Dtype of its hidden states.
        device: Their device.
    """

    def __init__(self, parts: DecoderParts, *, dtype: torch.dtype, device: torch.device) -> None:
        self._parts = parts
        self._dtype, self._device = dtype, device
        self._made: WeakValueDictionary[tuple[tuple[int, ...], bool], ReducedHead] = WeakValueDictionary()

    def over(self, ranked: Sequence[int], vocab_size: int, *, quantize: bool = False) -> ReducedHead:
        """The head over the first ``vocab_size`` ranked tokens; tokens that end a text are always among them.

        Args:
            ranked: Token ids, the most important first.
            vocab_size: Tokens to keep.
            quantize: Whether the rows are held in NF4; their number is then rounded up to whole blocks, if so many
                are ranked.

        Raises:
            PlanError: The model's head has no such rows, or cannot be cut or quantised.
        """
        size = -(-vocab_size // CPU_ROW_BLOCK) * CPU_ROW_BLOCK if quantize else vocab_size
        ids = self._kept(ranked, size if size <= len(ranked) else vocab_size)
        head = self._made.get((ids, quantize))
        if head is None:
            head = self._made[ids, quantize] = self._cut(ids, quantize=quantize)
        return head

    def _kept(self, ranked: Sequence[int], vocab_size: int) -> tuple[int, ...]:
        ids = list(dict.fromkeys([*_end_tokens(self._parts), *ranked]))[:vocab_size]
        if len(ids) < vocab_size:
            message = (
                f"A draft head over {vocab_size:,} tokens was asked for, and the calibration ranks {len(ids):,}. "
                "Choose a smaller vocab_size, or calibrate again."
            )
            raise PlanError(message)
        return tuple(sorted(ids))

    def _cut(self, ids: tuple[int, ...], *, quantize: bool) -> ReducedHead:
        head = self._parts.head
        weight = _dense_weight(head)
        if not 0 <= ids[0] <= ids[-1] < weight.shape[0]:
            message = f"Token {ids[-1]} was ranked, and the model has {weight.shape[0]:,} tokens: calibrate it itself."
            raise PlanError(message)
        index = torch.tensor(ids, dtype=torch.long, device=weight.device)
        bias: Tensor | None = getattr(head, "bias", None)
        linear = _linear(weight.index_select(0, index), None if bias is None else bias.detach()[index])
        rows, held = self._quantized(linear) if quantize else _packed(linear)
        own_bytes = index.numel() * index.element_size() + (0 if bias is None else len(ids) * bias.element_size())
        return ReducedHead(rows, index, vocab_size=weight.shape[0], num_bytes=held + own_bytes)

    def _quantized(self, linear: nn.Linear) -> tuple[nn.Module, int]:
        copies = quantized_modules((linear,), dtype=self._dtype, device=self._device)
        return copies.modules[0], copies.num_bytes


def chosen_head(
    target: Target, arrays: Mapping[str, Tensor], vocab_size: int | None, *, quantize: bool = False
) -> ReducedHead | None:
    """The reduced head that a plan asks for.

    Args:
        target: The model.
        arrays: Fitted arrays of a calibration.
        vocab_size: Tokens to keep, or None for the model's own head.
        quantize: Whether the rows are held in NF4.

    Raises:
        PlanError: The tokens were not ranked, or the head cannot be cut.
    """
    if vocab_size is None:
        return None
    if RANKS_NAME not in arrays:
        message = (
            f"A draft head over {vocab_size:,} tokens needs their ranking, which is missing: it is found by `selfspec "
            "calibrate` and lies beside the calibration file as .safetensors. Keep both together, or leave out "
            "vocab_size."
        )
        raise PlanError(message)
    return target.reduced_heads.over(arrays[RANKS_NAME].tolist(), vocab_size, quantize=quantize)


def rank_names(vocab_size: int | None) -> tuple[str, ...]:
    """Names of the arrays that a head over so many tokens needs."""
    return () if vocab_size is None else (RANKS_NAME,)


def describe_head(vocab_size: int | None) -> str:
    """For example ``, 4,096 tokens``; nothing for the model's own head."""
    return "" if vocab_size is None else f", {vocab_size:,} tokens"


def _end_tokens(parts: DecoderParts) -> tuple[int, ...]:
    ids = parts.model.generation_config.eos_token_id if parts.model.generation_config is not None else None
    return () if ids is None else tuple(ids) if isinstance(ids, list | tuple) else (int(ids),)


def _dense_weight(head: Any) -> Tensor:
    """The head's weight, ``[vocab, hidden]``."""
    weight = dense_weight(head)
    if weight is not None:
        return weight
    message = (
        f"The head ({type(head).__name__}) is not a plain linear layer, so that no rows can be taken out of it. Leave "
        "vocab_size out of the plan, or load the model unquantised."
    )
    raise PlanError(message)


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    rows, width = weight.shape
    linear = nn.Linear(width, rows, bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad=False)
    return linear.eval()


def _packed(linear: nn.Linear) -> tuple[nn.Module, int]:
    """The rows in the form that is fastest on their device, and the bytes of their weight."""
    packed = fast_linear(linear) if can_be_fast(linear) else linear
    held = linear.weight.numel() * linear.weight.element_size()
    return packed, int(getattr(packed, "packed_bytes", held))
