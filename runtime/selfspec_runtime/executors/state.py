"""Tensors that recorded steps read and write: allocated once, before anything is recorded, and never replaced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec_runtime.executors.device_rules import LawPart
    from selfspec_runtime.sequence import Sequence

#: Places of the outcome that come before drafted tokens and confidences.
NUM_ACCEPTED, TOKEN, BROKEN, FIRST_DRAFTED = 0, 1, 2, 3
_WORD = 0xFFFFFFFF


@dataclass(frozen=True)
class StateSizes:
    """Sizes of the static buffers.

    Attributes:
        max_drafts: The most tokens a round drafts.
        hidden_size: Width of the hidden states.
        vocab_size: Number of logits.
    """

    max_drafts: int
    hidden_size: int
    vocab_size: int


class DeviceState:
    """Where a generation stands, on the device.

    Args:
        sizes: Sizes of the buffers.
        dtype: Of the hidden states.
        device: The model's device.

    Attributes:
        length: Position of the last committed token, which is the number of positions in the cache; ``[1]`` int64.
        cursor: Tokens drafted so far in this round, ``[1]`` int64.
        window: The last committed token, then the drafted ones, ``[max_drafts + 1]`` int64.
        key: The two words of the noise's key, ``[2]`` int64.
        hidden: Hidden states at an exit, for the last committed token and each drafted one,
            ``[1, max_drafts + 1, hidden]``.
        outcome: What the host reads, ``[3 + 2 * max_drafts]`` float64, in which ids and counts are exact: accepted
            tokens, the token after them, whether logits were not numbers, drafted tokens, confidences.
        laws: The laws that drafted tokens were drawn from, as their rule keeps them, each part ``[max_drafts, width]``;
            none until reserved.
    """

    def __init__(self, sizes: StateSizes, *, dtype: torch.dtype, device: torch.device) -> None:
        self.sizes = sizes
        self.length = torch.zeros(1, dtype=torch.long, device=device)
        self.cursor = torch.zeros(1, dtype=torch.long, device=device)
        self.window = torch.zeros(sizes.max_drafts + 1, dtype=torch.long, device=device)
        self.key = torch.zeros(2, dtype=torch.long, device=device)
        self.hidden = torch.zeros(1, sizes.max_drafts + 1, sizes.hidden_size, dtype=dtype, device=device)
        self.outcome = torch.zeros(FIRST_DRAFTED + 2 * sizes.max_drafts, dtype=torch.float64, device=device)
        self.laws: tuple[Tensor, ...] = ()
        self._at: tuple[int, int] | None = None

    @property
    def first_confidence(self) -> int:
        """Place of the first confidence in the outcome."""
        return FIRST_DRAFTED + self.sizes.max_drafts

    def reserve_laws(self, parts: tuple[LawPart, ...]) -> None:
        """Makes room for the laws of drafted tokens, once: what was recorded goes on writing there.

        Args:
            parts: What the rule keeps of a law; all rules of a model that keep one keep the same.
        """
        if not self.laws:
            rows, device = self.sizes.max_drafts, self.length.device
            self.laws = tuple(torch.zeros(rows, part.width, dtype=part.dtype, device=device) for part in parts)

    def place(self, sequence: Sequence, seed: int) -> None:
        """Sets the state to the end of a text, unless the last round has left it there.

        Args:
            sequence: Committed tokens.
            seed: Key of the noise.
        """
        wanted = (sequence.last_position, sequence.ids[-1])
        if self._at != wanted:
            self.length.fill_(wanted[0])
            self.window[:1].fill_(wanted[1])
        # A kernel's argument and no copy: nothing waits for it.
        self.key[:1].fill_(seed & _WORD)
        self.key[1:].fill_((seed >> 32) & _WORD)
        self._at = None

    def arrived(self, position: int, token_id: int) -> None:
        """Notes where a round has left the state, so that the next one need not set it."""
        self._at = (position, token_id)

    def forget(self) -> None:
        """Has the next round set the state."""
        self._at = None

    def snapshot(self) -> tuple[Tensor, ...]:
        """Copies of what steps change and later ones read."""
        return tuple(tensor.clone() for tensor in self._changing())

    def restore(self, snapshot: tuple[Tensor, ...]) -> None:
        """Puts a snapshot back."""
        for tensor, saved in zip(self._changing(), snapshot, strict=True):
            tensor.copy_(saved)

    def _changing(self) -> tuple[Tensor, ...]:
        return self.length, self.cursor, self.window, self.hidden, self.outcome, *self.laws
