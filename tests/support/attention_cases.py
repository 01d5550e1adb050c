"""Inputs of attention, and what it is in float64 with every head repeated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

#: As in attention_layout.split_size(), the least: several splits in few columns.
SPLIT = 16
#: Rounding of inputs and weights, by dtype, for values around 1.
TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}


@dataclass(frozen=True)
class Case:
    """One call of attention.

    Attributes:
        query: ``[1, heads, n, head_dim]``, a view as models make it.
        key: ``[1, kv_heads, columns, head_dim]``, a view of a longer cache.
        value: ``[1, kv_heads, columns, value_dim]``, likewise.
        mask: Boolean ``[1, 1, n, columns]``, or None.
        scaling: Factor on the scores.
        softcap: Bound on the scores.
        sinks: ``[heads]``, or None.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    scaling: float = 0.4
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def extras(self) -> dict[str, Any]:
        """What is passed by name."""
        return {"scaling": self.scaling, "softcap": self.softcap, "sinks": self.sinks}

    def row(self, index: int) -> Case:
        """The call for one row alone."""
        mask = None if self.mask is None else self.mask[:, :, index : index + 1]
        return replace(self, query=self.query[:, :, index : index + 1].clone(), mask=mask)

    def error(self, out: Tensor) -> float:
        """Largest deviation of a result."""
        return float((out.double() - exact_attention(self)).abs().nan_to_num(nan=torch.inf).max())


def make_case(
    *,
    heads: tuple[int, int] = (2, 1),
    rows: int = 1,
    columns: int = 20,
    dims: tuple[int, int] = (8, 6),
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    **extras: Any,
) -> Case:
    """Random inputs and a random mask in which each row sees something.

    Args:
        heads: Query heads and key heads.
        rows: ``n``.
        columns: Keys.
        dims: Width of a key and of a value.
        dtype: Of queries, keys and values.
        seed: Of the numbers.
        extras: Further fields.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    key, value = (normal(1, heads[1], columns + 7, dim)[:, :, :columns] for dim in dims)
    mask = torch.rand(1, 1, rows, columns, generator=generator) < 0.7
    mask[..., torch.arange(rows), torch.randint(columns, (rows,), generator=generator)] = True
    return Case(normal(1, rows, heads[0], dims[0]).transpose(1, 2), key, value, **{"mask": mask, **extras})


def exact_attention(case: Case) -> Tensor:
    """``[1, n, heads, value_dim]`` float64; zeros for a row that sees nothing."""
    groups = case.query.shape[1] // case.key.shape[1]
    keys, values = (t.double().repeat_interleave(groups, dim=1) for t in (case.key, case.value))
    scores = case.query.double() @ keys.transpose(2, 3) * case.scaling
    if case.softcap is not None:
        scores = case.softcap * torch.tanh(scores / case.softcap)
    weights = scores.exp() if case.mask is None else scores.exp() * case.mask
    total = weights.sum(dim=3, keepdim=True)
    if case.sinks is not None:
        total = total + case.sinks.double().exp()[None, :, None, None]
    return (weights / total.where(total > 0, 1.0) @ values).transpose(1, 2)
