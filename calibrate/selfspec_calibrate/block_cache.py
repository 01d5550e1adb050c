"""Keys and values of a trace, read by a draft that writes only its own rows.

One pass over all scored rows of a trace scores a draft at depth 1 exactly as decoding would meet it: the row
at position t attends to the *target's* keys and values before t, and to the draft's own at t alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from selfspec_runtime.scratch import rows_mask

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec_runtime.architecture import DecoderParts
    from selfspec_runtime.cache import KVCache
    from selfspec_runtime.masks import Mask


class BlockCache:
    """Stands in for a cache during a pass over the scored rows.

    Each layer holds ``length`` positions of the target, which stay as they are, and behind them room for the
    keys and values of ``num_rows`` rows, which every pass overwrites. Nothing is copied per pass.

    Args:
        source: A cache that holds the target's keys and values for ``source.length`` positions.
        num_layers: Number of decoder layers.
        num_rows: Scored rows: the last positions of the source.

    Attributes:
        length: Positions of the target.
        num_rows: Rows of a pass.
    """

    is_compileable = False
    is_initialized = True

    def __init__(self, source: KVCache, *, num_layers: int, num_rows: int) -> None:
        self.length = source.length
        self.num_rows = num_rows
        held = [source.layer(index) for index in range(num_layers)]
        self._keys = [_with_room(keys, num_rows) for keys, _ in held]
        self._values = [_with_room(values, num_rows) for _, values in held]

    @property
    def start(self) -> int:
        """Position of the first scored row."""
        return self.length - self.num_rows

    @property
    def num_bytes(self) -> int:
        """Memory held by keys and values."""
        return sum(t.numel() * t.element_size() for t in (*self._keys, *self._values))

    def begin(self, start: int, num_tokens: int) -> None:
        """Announces a pass, which can only be one over the scored rows."""
        assert (start, num_tokens) == (self.start, self.num_rows), "a block cache serves its own rows only"

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Writes the rows' own keys and values behind the target's.

        Args:
            key_states: ``[1, kv_heads, num_rows, head_dim]``.
            value_states: ``[1, kv_heads, num_rows, value_dim]``.
            layer_idx: Index of the layer.

        Returns:
            The layer's keys and values, ``[1, kv_heads, length + num_rows, dim]`` each.
        """
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys[:, :, self.length :] = key_states
        values[:, :, self.length :] = value_states
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions before the pass."""
        del layer_idx
        return self.start

    def mask(self, parts: DecoderParts, *, dtype: torch.dtype, device: torch.device) -> Mask:
        """Which of the ``length + num_rows`` columns each row sees, as the family wants it."""
        positions = torch.arange(self.start, self.length, device=device)
        return rows_mask(parts, positions, length=self.length, dtype=dtype)


def _with_room(states: Tensor, num_rows: int) -> Tensor:
    batch, heads, length, dim = states.shape
    wide = states.new_zeros(batch, heads, length + num_rows, dim)
    wide[:, :, :length] = states
    return wide
