from __future__ import annotations

import pytest
import torch
from torch import Tensor

from selfspec_calibrate.ridge import Gram


def rows(count: int, *, seed: int = 0) -> Tensor:
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
    # Sizes differ as in a residual stream, within a row and between rows.
    return x * torch.tensor([1.0, 1.0, 1.0, 1.0, 3.0, 20.0]) * (1 + torch.arange(count)[:, None] % 5)


TRUE = torch.randn(6, 6, generator=torch.Generator().manual_seed(9)) / 3


def test_a_linear_map_is_found() -> None:
    x = rows(200)
    weight = Gram.of(x, x + x @ TRUE.T).fitted(1e-9)
    torch.testing.assert_close(weight, TRUE, atol=1e-3, rtol=0)


def test_the_solution_is_that_of_ridge_regression_on_weighted_rows() -> None:
    x = rows(30)
    y = x + x @ TRUE.T + rows(30, seed=1)
    size = x.square().mean(dim=1, keepdim=True).sqrt()
    a, d = (x / size).double(), ((y - x) / size).double()
    unit = a.square().sum(dim=0).median()
    augmented = torch.cat([a, (0.3 * unit).sqrt() * torch.eye(6, dtype=torch.float64)])
    expected = torch.linalg.lstsq(augmented, torch.cat([d, torch.zeros(6, 6, dtype=torch.float64)])).solution.T
    torch.testing.assert_close(Gram.of(x, y).fitted(0.3).double(), expected, atol=1e-4, rtol=1e-4)


def test_sums_of_parts_are_those_of_the_whole() -> None:
    x, y = rows(50), rows(50, seed=1)
    whole, first, second = Gram.of(x, y), Gram.of(x[:20], y[:20]), Gram.of(x[20:], y[20:])
    both = first + second
    torch.testing.assert_close(both.xx, whole.xx, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(both.xd, whole.xd, atol=1e-3, rtol=1e-4)
    assert both.dd == pytest.approx(whole.dd, rel=1e-5)
    assert both.num_rows == whole.num_rows == 50


def test_the_error_is_that_of_the_map_on_the_rows() -> None:
    x, y = rows(40), rows(40, seed=1)
    weight = rows(6, seed=2) / 10
    size = x.square().mean(dim=1, keepdim=True).sqrt()
    expected = ((x + x @ weight.T - y) / size).square().sum(dim=1).mean()
    assert Gram.of(x, y).error(weight) == pytest.approx(float(expected), rel=1e-4)


def test_a_stronger_ridge_gives_a_smaller_map() -> None:
    gram = Gram.of(rows(40), rows(40, seed=1))
    norms = [float(gram.fitted(strength).norm()) for strength in (1e-3, 1e-1, 1e1, 1e5)]
    assert norms == sorted(norms, reverse=True)
    assert norms[-1] < 1e-3


def test_fewer_rows_than_dimensions_are_enough_for_a_ridge() -> None:
    assert Gram.of(rows(3), rows(3, seed=1)).fitted(0.1).isfinite().all()


def test_a_dimension_a_thousand_times_as_large_breaks_no_factorisation() -> None:
    x, y = rows(400) * torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 1e4]), rows(400, seed=1)
    assert Gram.of(x, y).fitted(0.03).isfinite().all()
