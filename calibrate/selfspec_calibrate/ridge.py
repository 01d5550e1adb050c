"""Ridge regression from sums alone: rows are seen once and not kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

FLOOR = 1e-5
"""Least unit of a ridge strength, relative to the largest variance."""


@dataclass(frozen=True)
class Gram:
    """Second moments of inputs x and of what a residual map must add to them, d = y - x.

    Each row is divided by the root mean square of its x first: a final norm follows, which makes rows of any
    length equally important.

    Attributes:
        xx: Sum of x x^T, float32 ``[width, width]``.
        xd: Sum of x d^T, float32 ``[width, width]``.
        dd: Sum of the squares of d.
        num_rows: Rows seen.
    """

    xx: Tensor
    xd: Tensor
    dd: float
    num_rows: int

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> Gram:
        """The sums over rows ``[n, width]`` of any floating dtype."""
        x, y = x.float(), y.float()
        size = x.square().mean(dim=1, keepdim=True).sqrt().clamp(min=1e-12)
        x, d = x / size, (y - x) / size
        return cls(x.T @ x, x.T @ d, float(d.square().sum()), x.shape[0])

    def __add__(self, other: Gram) -> Gram:
        """The sums over both sets of rows."""
        return Gram(self.xx + other.xx, self.xd + other.xd, self.dd + other.dd, self.num_rows + other.num_rows)

    def fitted(self, strength: float) -> Tensor:
        """The ridge solution, computed in float64.

        Args:
            strength: Ridge strength per row, in units of the median variance of an input dimension; the mean would
                follow the few dimensions of a residual stream that are a hundred times as large as the others.

        Returns:
            float32 ``[width, width]`` W such that x + W x approximates y.
        """
        xx = self.xx.double()
        sizes = xx.diagonal()
        # The floor is what float32 sums are sure of: below it a factorisation could fail.
        unit = torch.maximum(sizes.median(), FLOOR * sizes.max()).clamp(min=1e-12)
        xx.diagonal().add_(strength * unit)
        solution: Tensor = torch.cholesky_solve(self.xd.double(), torch.linalg.cholesky(xx))
        return solution.T.float().contiguous()

    def error(self, weight: Tensor) -> float:
        """Mean over these rows of the squared distance between x + W x and y, summed over dimensions."""
        fit = weight.T.double()
        explained = 2 * (fit * self.xd).sum() - (fit * (self.xx.double() @ fit)).sum()
        return (self.dd - float(explained)) / max(self.num_rows, 1)
