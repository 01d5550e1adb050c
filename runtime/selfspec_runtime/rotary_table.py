"""Cosines and sines of rotary positions (Su et al. 2104.09864), computed once for each position."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor, nn

#: Kinds of rotary positions whose frequencies are the same for every text; those of others depend on its length.
FIXED_KINDS = ("default", "linear", "llama3", "yarn")
STEP = 1024


class RotaryTable:
    """What a model's rotary module says, looked up where it says the same for a position in every text.

    Args:
        rotary: Maps hidden states (asked for their dtype) and positions ``[1, n]`` to cosines and sines.
    """

    def __init__(self, rotary: nn.Module) -> None:
        self._rotary = rotary
        self._is_fixed = getattr(rotary, "rope_type", "") in FIXED_KINDS
        self._table: tuple[Tensor, Tensor] | None = None

    def block(self, hidden_states: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the positions from ``start`` on.

        Args:
            hidden_states: ``[1, n, hidden]``.
            start: Position of the first row.

        Returns:
            ``[1, n, dim]`` each, contiguous, in the dtype of the hidden states.
        """
        stop = start + hidden_states.shape[1]
        if not self._is_fixed:
            return self.at(hidden_states, torch.arange(start, stop, device=hidden_states.device))
        cosine, sine = self._upto(stop, hidden_states)
        return cosine[:, start:stop], sine[:, start:stop]

    def at(self, hidden_states: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of any positions, ``[n]`` int64; as :meth:`block` gives them."""
        cosine, sine = self._rotary(hidden_states, position_ids=positions[None])
        return cosine, sine

    def _upto(self, stop: int, like: Tensor) -> tuple[Tensor, Tensor]:
        table = self._table
        if table is None or table[0].shape[1] < stop or (table[0].dtype, table[0].device) != (like.dtype, like.device):
            table = self.at(like, torch.arange(-(-stop // STEP) * STEP, device=like.device))
            self._table = table
        return table
