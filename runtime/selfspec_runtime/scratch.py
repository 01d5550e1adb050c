"""Passes over tokens that are committed already, which read the cache and change nothing that is committed.

Each row attends to the target's own keys and values before its position, and of the pass's own only to itself. So
many drafts, or many tokens under one draft, are tried in one pass, each as a round of decoding would begin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from selfspec_runtime.errors import PlanError
from selfspec_runtime.masks import masks_by_window

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec_runtime.architecture import DecoderParts
    from selfspec_runtime.cache import KVCache
    from selfspec_runtime.masks import Mask
    from selfspec_runtime.program import LayerProgram
    from selfspec_runtime.target import Target


class ScratchRows:
    """Stands in for a cache during one such pass.

    The rows' own keys and values are written behind what is committed, where the next pass of decoding overwrites
    them before anything reads them.

    Args:
        cache: The shared cache.
        positions: int64 ``[n]``, the place of each row in the text, at most ``cache.length``. Several rows may
            stand at one place.
    """

    is_compileable = False
    is_initialized = True

    def __init__(self, cache: KVCache, positions: Tensor) -> None:
        self._cache = cache
        self.positions = positions
        self._start = 0

    def begin(self, start: int, num_tokens: int) -> None:
        """Announces the pass; ``start`` is what families hear that compute positions themselves."""
        self._start = start
        self._cache.begin(self._cache.length, num_tokens)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Writes the rows' keys and values, ``[1, kv_heads, n, dim]``, and returns ``length + n`` of each."""
        return self._cache.update(key_states, value_states, layer_idx)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Position of the first row."""
        del layer_idx
        return self._start

    def mask(self, target: Target) -> Mask:
        """Which of the ``length + n`` columns each row sees, as the family wants it."""
        return rows_mask(target.parts, self.positions, length=self._cache.length, dtype=target.dtype)


def require_positions(target: Target) -> None:
    """Checks that rows may stand elsewhere than their slots in the cache.

    Raises:
        PlanError: The family computes positions, or biases by distance, from the slots.
    """
    if not target.takes_trees:
        message = (
            f"{type(target.model).__name__} cannot pass committed tokens through a draft again: "
            f"{target.parts.tied_to_slots}. Choose a fixed skip set, for example by calibration."
        )
        raise PlanError(message)


def has_room(cache: KVCache, num_rows: int) -> bool:
    """Whether scratch rows fit without growing the cache, which no trial is worth."""
    return cache.length + num_rows <= cache.capacity


def replayed_logits(
    target: Target, token_ids: Tensor, cache: KVCache, *, positions: Tensor, program: LayerProgram
) -> Tensor:
    """A draft's logits after tokens that are committed already.

    Args:
        target: The model.
        token_ids: int64 ``[n]``, on the model's device.
        cache: The shared cache, which is left as it is as far as it is committed.
        positions: int64 ``[n]``, consecutive.
        program: The draft's program.

    Returns:
        ``[n, vocab]`` in the model's dtype.
    """
    rows = ScratchRows(cache, positions)
    start = int(positions[0])
    return target.logits(token_ids, rows, start=start, program=program, mask=rows.mask(target), positions=positions)


def replay(target: Target, token_ids: Tensor, cache: KVCache, *, positions: Tensor, program: LayerProgram) -> None:
    """The same without the head, for what the program's stubs keep; positions need not be consecutive."""
    rows = ScratchRows(cache, positions)
    start = int(positions[0])
    target.advance(token_ids, rows, start=start, program=program, mask=rows.mask(target), positions=positions)


def rows_mask(parts: DecoderParts, positions: Tensor, *, length: int, dtype: torch.dtype) -> Mask:
    """The mask of rows that see committed columns before their position, and themselves.

    Args:
        parts: The model's parts.
        positions: int64 ``[n]``, the place of each row.
        length: Committed columns; the ``n`` columns behind them are the rows' own.
        dtype: Of an additive mask.

    Returns:
        ``[1, 1, n, length + n]``, as the family wants it.
    """
    columns = torch.arange(length, device=positions.device)
    own = torch.eye(len(positions), dtype=torch.bool, device=positions.device)

    def seen(window: int | None) -> Tensor:
        before = columns[None, :] < positions[:, None]
        if window is not None:
            before &= columns[None, :] > positions[:, None] - window
        return torch.cat([before, own], dim=1)[None, None]

    return masks_by_window(parts, seen, dtype=dtype)
