"""Explicit four-dimensional attention masks and positions for a pass over the shared cache.

They are always passed explicitly: a model that derives them from a cache's length derives them wrongly as
soon as layers are skipped or resumed (a measured logit error of 0.04 to 0.3, not a crash).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from selfspec_runtime.architecture import DecoderParts

Mask = Tensor | dict[str, Tensor]


def causal_mask(rows: Tensor, columns: Tensor, window: int | None) -> Tensor:
    """Which columns each row sees.

    Args:
        rows: Positions of the queries, ``[n]`` int64.
        columns: Positions of the keys, ``[live]`` int64.
        window: Number of positions a row sees, itself included; None for all before it.

    Returns:
        ``[1, 1, n, live]`` bool, True where seen.
    """
    seen = columns[None, :] <= rows[:, None]
    if window is not None:
        seen &= columns[None, :] > rows[:, None] - window
    return seen[None, None]


def block_mask(parts: DecoderParts, *, start: int, num_tokens: int, dtype: torch.dtype, device: torch.device) -> Mask:
    """The mask of a pass over ``num_tokens`` positions from ``start`` on, as the family wants it."""
    rows = torch.arange(start, start + num_tokens, device=device)
    columns = torch.arange(start + num_tokens, device=device)
    return masks_by_window(parts, lambda window: causal_mask(rows, columns, window), dtype=dtype)


def masks_by_window(parts: DecoderParts, make: Callable[[int | None], Tensor], *, dtype: torch.dtype) -> Mask:
    """One mask per kind of layer, built by ``make(window)``, in the form that the model's forward accepts."""

    def shaped(window: int | None) -> Tensor:
        return make(window) if parts.takes_boolean_masks else _additive(make(window), dtype)

    if parts.layer_kinds is None:
        return shaped(parts.windows[0])
    window_of = dict(zip(parts.layer_kinds, parts.windows, strict=True))
    return {kind: shaped(window) for kind, window in window_of.items()}


def _additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    blocked = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=seen.device)
    return torch.where(seen, blocked.new_zeros(()), blocked)
