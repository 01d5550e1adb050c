"""Storage for keys and values that stays where it is, so that recorded steps stay valid from text to text.

Every generation has a cache of its own, but a recorded step reads and writes fixed addresses. So the storage
belongs to the model, and the cache that is decoded with is its tenant: it moves in without a copy when it is
empty, with one copy otherwise, and a tenant that is displaced takes its contents along.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec_runtime.cache import KVCache

#: Capacities are multiples of this many positions: growing later invalidates what was recorded.
ARENA_STEP = 1024


class Arena:
    """Fixed storage with one tenant at a time.

    Attributes:
        keys: For each layer ``[1, kv_heads, capacity, head_dim]``; empty before the first tenant.
        values: For each layer ``[1, kv_heads, capacity, value_dim]``.
        version: Grows whenever the storage is replaced, and with it what was recorded becomes invalid.
    """

    def __init__(self) -> None:
        self.keys: tuple[Tensor, ...] = ()
        self.values: tuple[Tensor, ...] = ()
        self.version = 0
        self._tenant: weakref.ref[KVCache] | None = None

    @property
    def capacity(self) -> int:
        """Positions per layer."""
        return self.keys[0].shape[2] if self.keys else 0

    def welcome(self, cache: KVCache, *, margin: int) -> None:
        """Moves an empty cache in before its prompt's pass, so that nothing need be copied later.

        Args:
            cache: A cache; one that holds something, or that needs more than there is, is left alone.
            margin: Positions that a round may use beyond those that were asked for.
        """
        if cache.is_allocated:
            return
        cache.reserve(-(-(cache.capacity + margin) // ARENA_STEP) * ARENA_STEP)
        if self.keys and cache.capacity <= self.capacity:
            self._evict()
            # A broken text may have left NaN behind, which a mask does not hide: 0 * NaN is NaN.
            for held in (*self.keys, *self.values):
                held.zero_()
            self._settle(cache)

    def attach(self, cache: KVCache) -> None:
        """Makes a cache that holds a text the tenant.

        Args:
            cache: After its prompt's pass.
        """
        if cache.is_stored_in(self.keys):
            return
        if cache.capacity > self.capacity:
            # The tenant keeps the old storage; this cache's own becomes the arena.
            self.keys, self.values = cache.storage()
            self.version += 1
            self._tenant = weakref.ref(cache)
            return
        self._evict()
        keys, values = cache.storage()
        for ours, theirs in zip((*self.keys, *self.values), (*keys, *values), strict=True):
            ours.zero_()
            ours[:, :, : theirs.shape[2]] = theirs
        self._settle(cache)

    def _settle(self, cache: KVCache) -> None:
        cache.adopt(self.keys, self.values)
        self._tenant = weakref.ref(cache)

    def _evict(self) -> None:
        tenant = None if self._tenant is None else self._tenant()
        if tenant is not None and tenant.is_stored_in(self.keys):
            tenant.adopt(tuple(t.clone() for t in self.keys), tuple(t.clone() for t in self.values))
