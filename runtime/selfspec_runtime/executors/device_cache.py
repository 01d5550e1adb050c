"""The shared cache as a captured step sees it: written at device-side positions, read over a fixed extent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class DeviceCache:
    """Stands in for a ``transformers`` cache inside a step that reads nothing on the host.

    Where to write is a tensor; how far it reaches is a number that is fixed when the step is captured (its bucket),
    and the mask hides what lies between the live length and that: the own attention does not read it.

    Args:
        keys: For each layer ``[1, kv_heads, capacity, head_dim]``.
        values: For each layer ``[1, kv_heads, capacity, value_dim]``.
        extent: Positions that attention is given, at most the capacity.

    Attributes:
        positions: Where the pass in progress writes, ``[n]`` int64.
    """

    is_compileable = False
    is_initialized = True

    def __init__(self, keys: Sequence[Tensor], values: Sequence[Tensor], *, extent: int) -> None:
        self.extent = extent
        self.positions: Tensor | None = None
        self._keys = tuple(keys)
        self._values = tuple(values)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Writes the pass's keys and values and returns the extent.

        Args:
            key_states: ``[1, kv_heads, n, head_dim]``.
            value_states: ``[1, kv_heads, n, value_dim]``.
            layer_idx: Index of the layer.

        Returns:
            Views ``[1, kv_heads, extent, dim]`` of the layer's keys and values; nothing is copied.
        """
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys.index_copy_(2, self._announced(), key_states)
        values.index_copy_(2, self._announced(), value_states)
        return keys[:, :, : self.extent], values[:, :, : self.extent]

    def get_seq_length(self, layer_idx: int = 0) -> Tensor:
        """Positions before the pass in progress, ``[1]`` int64: whoever needs it as a number cannot be captured."""
        del layer_idx
        return self._announced()[:1]

    def _announced(self) -> Tensor:
        assert self.positions is not None, "no pass was announced"
        return self.positions
