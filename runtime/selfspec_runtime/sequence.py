"""The tokens of one generation: prompt, then what was committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable


class Sequence:
    """A growing list of token ids, on the host and on the model's device.

    Args:
        prompt_ids: Token ids of the prompt, at least one.
        device: The model's device.

    Attributes:
        prompt_length: Number of prompt tokens.
    """

    def __init__(self, prompt_ids: list[int], *, device: torch.device) -> None:
        self.prompt_length = len(prompt_ids)
        self._ids = list(prompt_ids)
        self._buffer = torch.tensor(prompt_ids, dtype=torch.long, device=device)

    def __len__(self) -> int:
        """Number of tokens, prompt included."""
        return len(self._ids)

    @property
    def ids(self) -> list[int]:
        """All token ids."""
        return self._ids

    @property
    def new_ids(self) -> list[int]:
        """Token ids after the prompt."""
        return self._ids[self.prompt_length :]

    @property
    def num_new(self) -> int:
        """How many tokens follow the prompt."""
        return len(self._ids) - self.prompt_length

    @property
    def last_position(self) -> int:
        """Position of the last token, which the cache does not hold yet."""
        return len(self._ids) - 1

    def tensor(self) -> Tensor:
        """All token ids, ``[n]`` int64, on the device."""
        return self._buffer[: len(self._ids)]

    def append(self, token_id: int) -> None:
        """Commits one token."""
        position = len(self._ids)
        if position == self._buffer.shape[0]:
            self._buffer = torch.cat([self._buffer, self._buffer.new_zeros(max(64, position))])
        self._buffer[position] = token_id
        self._ids.append(token_id)


def common_prefix(first: Iterable[int], second: Iterable[int]) -> int:
    """Number of leading tokens that both have in common."""
    length = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        length += 1
    return length
