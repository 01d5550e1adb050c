"""One static key/value cache, shared by draft and target.

Rolling back a chain of rejected tokens is moving the length: what lies beyond it is overwritten by the next
pass before anything reads it. Sliding-window layers keep their full length too (the window is in the mask),
since a ring buffer cannot be rolled back (transformers#46629, #48280).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from selfspec_runtime.errors import CapacityError
from selfspec_runtime.native.layer import CacheAddresses, CacheSlots

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

GROWTH_STEP = 256


class KVCache:
    """Keys and values of every layer, written at explicit positions.

    It stands in for a ``transformers`` cache: attention modules call :meth:`update`. It is deliberately not a
    subclass, because nothing of that class's bookkeeping (a length per layer, cropping) holds here.

    Args:
        num_layers: Number of decoder layers.
        capacity: Positions to allocate at first.
        max_positions: The model's context length, or None if it has no limit.

    Attributes:
        length: Number of positions that hold committed tokens.
    """

    is_compileable = False
    is_initialized = True

    def __init__(self, num_layers: int, *, capacity: int = GROWTH_STEP, max_positions: int | None = None) -> None:
        self.length = 0
        self.max_positions = max_positions
        self._capacity = min(capacity, max_positions) if max_positions else capacity
        self._keys: list[Tensor | None] = [None] * num_layers
        self._values: list[Tensor | None] = [None] * num_layers
        self._start = 0
        self._stop = 0
        self._addresses: CacheAddresses | None = None

    @property
    def capacity(self) -> int:
        """Positions that fit without growing."""
        return self._capacity

    @property
    def live(self) -> int:
        """Positions that the pass in progress may see."""
        return self._stop

    @property
    def num_bytes(self) -> int:
        """Memory held by keys and values."""
        held = [t for t in (*self._keys, *self._values) if t is not None]
        return sum(t.numel() * t.element_size() for t in held)

    def begin(self, start: int, num_tokens: int) -> None:
        """Announces a pass over positions ``start .. start + num_tokens - 1``.

        Raises:
            CapacityError: The positions lie beyond the model's context.
        """
        stop = start + num_tokens
        if self.max_positions is not None and stop > self.max_positions:
            message = (
                f"The text needs {stop} positions, but the model's context holds {self.max_positions}. "
                "Shorten the prompt or ask for fewer new tokens."
            )
            raise CapacityError(message)
        if stop > self._capacity:
            self._grow(stop)
        self._start, self._stop = start, stop

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Writes the pass's keys and values and returns all live ones.

        Args:
            key_states: ``[1, kv_heads, n, head_dim]``.
            value_states: ``[1, kv_heads, n, value_dim]``.
            layer_idx: Index of the layer.

        Returns:
            Views ``[1, kv_heads, live, head_dim]`` of the layer's keys and values; nothing is copied.
        """
        keys = self._slot(self._keys, key_states, layer_idx)
        values = self._slot(self._values, value_states, layer_idx)
        keys[:, :, self._start : self._stop] = key_states
        values[:, :, self._start : self._stop] = value_states
        return keys[:, :, : self._stop], values[:, :, : self._stop]

    def slots(self, *, kv_heads: int, dim: int, like: Tensor) -> CacheSlots | None:
        """Where the pass in progress is to write, for kernels that do it themselves.

        Args:
            kv_heads: Key heads of every layer.
            dim: Their width.
            like: A tensor of the dtype and device that the cache must have.

        Returns:
            None where the cache holds something else.
        """
        if self._addresses is None:
            example = like.new_empty(1, kv_heads, 0, dim)
            stores = self._keys, self._values
            held = ([self._slot(store, example, index) for index in range(len(store))] for store in stores)
            self._addresses = CacheAddresses(*held)
        if not self._addresses.hold(kv_heads=kv_heads, dim=dim, dtype=like.dtype):
            return None
        return CacheSlots(self._addresses, self._start, self._stop)

    def compact(self, slots: Sequence[int], *, start: int) -> None:
        """Moves what slots hold to the slots ``start, start + 1, ...``; only what is not there already is copied.

        Args:
            slots: Slots of the accepted path, in the order of their text; none before ``start``.
            start: First slot that the path shall fill.
        """
        moves = [(slot, start + index) for index, slot in enumerate(slots) if slot != start + index]
        stores = [held for held in (*self._keys, *self._values) if held is not None] if moves else []
        places = {device: torch.tensor(moves, device=device).unbind(1) for device in {held.device for held in stores}}
        for held in stores:
            source, goal = places[held.device]
            held[:, :, goal] = held[:, :, source]

    def layer(self, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Committed keys and values of one layer, ``[1, kv_heads, length, dim]`` each."""
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        if keys is None or values is None:
            message = f"Layer {layer_idx} has written nothing yet."
            raise IndexError(message)
        return keys[:, :, : self.length], values[:, :, : self.length]

    @property
    def is_allocated(self) -> bool:
        """Whether any layer has storage yet."""
        return any(held is not None for held in self._keys)

    def reserve(self, capacity: int) -> None:
        """Asks for more positions than were asked for at first, before anything is written."""
        assert not self.is_allocated, "storage is allocated already"
        wanted = max(capacity, self._capacity)
        self._capacity = min(wanted, self.max_positions) if self.max_positions else wanted

    def storage(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Keys and values of every layer over the whole capacity, ``[1, kv_heads, capacity, dim]`` each."""
        keys = tuple(held for held in self._keys if held is not None)
        values = tuple(held for held in self._values if held is not None)
        assert len(keys) == len(values) == len(self._keys), "a layer has written nothing yet"
        return keys, values

    def adopt(self, keys: tuple[Tensor, ...], values: tuple[Tensor, ...]) -> None:
        """Moves into other storage, which holds the contents already; shapes as :meth:`storage` gives them."""
        self._keys, self._values, self._addresses = list(keys), list(values), None
        self._capacity = keys[0].shape[2]

    def is_stored_in(self, keys: tuple[Tensor, ...]) -> bool:
        """Whether these very tensors are what the keys are written to."""
        return bool(keys) and all(own is theirs for own, theirs in zip(self._keys, keys, strict=True))

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions before the pass in progress; what families ask that compute positions themselves."""
        del layer_idx
        return self._start

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """The same; what a family asks that is left to make its masks itself."""
        del layer_idx
        return self._start

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Columns of such a mask, and the position of the first."""
        del query_length, layer_idx
        return self._stop, 0

    def __getstate__(self) -> dict[str, Any]:
        """Addresses are nothing to copy."""
        return {**self.__dict__, "_addresses": None}

    def _slot(self, store: list[Tensor | None], states: Tensor, layer_idx: int) -> Tensor:
        held = store[layer_idx]
        if held is None:
            held = states.new_zeros(states.shape[0], states.shape[1], self._capacity, states.shape[3])
            store[layer_idx] = held
        return held

    def _grow(self, needed: int) -> None:
        steps = -(-max(needed, self._capacity * 2) // GROWTH_STEP)
        capacity = steps * GROWTH_STEP
        capacity = min(capacity, self.max_positions) if self.max_positions else capacity
        self._addresses = None
        for store in (self._keys, self._values):
            for index, held in enumerate(store):
                if held is not None:
                    store[index] = _widened(held, capacity)
        # Last: if the copying is interrupted, the next pass begins it again.
        self._capacity = capacity


def _widened(held: Tensor, capacity: int) -> Tensor:
    wide = torch.zeros(held.shape[0], held.shape[1], capacity, held.shape[3], dtype=held.dtype, device=held.device)
    wide[:, :, : held.shape[2]] = held
    return wide
