"""Ridge regression from sums alone: rows are seen once and not kept."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.sparse.linalg import ArpackError, eigsh

if TYPE_CHECKING:
    from torch import Tensor

FLOOR = 1e-5
"""Least unit of a ridge strength, relative to the largest variance."""


@dataclass
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
    def empty(cls, width: int, device: torch.device) -> Gram:
        """The sums over no rows."""
        xx, xd = (torch.zeros(width, width, device=device) for _ in range(2))
        return cls(xx, xd, 0.0, 0)

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> Gram:
        """The sums over rows ``[n, width]`` of any floating dtype."""
        gram = cls.empty(x.shape[1], x.device)
        gram.take_in(x, y)
        return gram

    def take_in(self, x: Tensor, y: Tensor) -> None:
        """Adds rows ``[n, width]`` of any floating dtype, in place: two matrices are held, however many rows come."""
        x, y = x.float(), y.float()
        size = x.square().mean(dim=1, keepdim=True).sqrt().clamp(min=1e-12)
        x, d = x / size, (y - x) / size
        self.xx.addmm_(x.T, x)
        self.xd.addmm_(x.T, d)
        self.dd += float(d.square().sum())
        self.num_rows += x.shape[0]

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

    def fitted_low_rank(self, strength: float, rank: int) -> tuple[Tensor, Tensor]:
        """The best map of a rank: reduced-rank ridge regression (Izenman 1975).

        The ridge solution loses least if its predictions are projected onto their first principal directions, in the
        metric of the sums (Eckart and Young). The directions are ordered: a smaller rank's are the first ones.

        Args:
            strength: As for :meth:`fitted`.
            rank: At most the width.

        Returns:
            float32 ``[rank, width]`` and ``[width, rank]``, down and up, such that x + up down x approximates y.
        """
        whole = self.fitted(strength).double()
        spread = whole @ self.xd.double()
        directions = _leading((spread + spread.T) / 2, rank)
        return (directions.T @ whole).float().contiguous(), directions.float().contiguous()

    def error(self, weight: Tensor) -> float:
        """Mean over these rows of the squared distance between x + W x and y, summed over dimensions."""
        fit = weight.T.double()
        explained = 2 * (fit * self.xd).sum() - (fit * (self.xx.double() @ fit)).sum()
        return (self.dd - float(explained)) / max(self.num_rows, 1)


def _leading(symmetric: Tensor, count: int) -> Tensor:
    """The eigenvectors of the largest eigenvalues, the largest first; float64 ``[width, count]``.

    A few of many are found by Lanczos' method, in a fraction of the time that all of them take.
    """
    if 4 * count < symmetric.shape[0]:
        start = np.random.default_rng(0).standard_normal(symmetric.shape[0])
        with suppress(ArpackError):  # a matrix of nothing, or one whose eigenvalues are all but equal
            _, vectors = eigsh(symmetric.cpu().numpy(), k=count, which="LA", v0=start)
            return torch.from_numpy(np.flip(vectors, axis=1).copy()).to(symmetric.device)
    ascending: Tensor = torch.linalg.eigh(symmetric).eigenvectors
    return ascending.flip(1)[:, :count]
