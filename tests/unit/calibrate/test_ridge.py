from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
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


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_rows_that_come_in_pieces_give_the_sums_of_all_in_two_matrices(sizes: list[int], seed: int) -> None:
    x, y = rows(sum(sizes), seed=seed), rows(sum(sizes), seed=seed + 1)
    streamed, whole = Gram.empty(6, x.device), Gram.of(x, y)
    places = streamed.xx.data_ptr(), streamed.xd.data_ptr()
    for own_x, own_y in zip(x.split(sizes), y.split(sizes), strict=True):
        streamed.take_in(own_x, own_y)
    torch.testing.assert_close(streamed.xx, whole.xx, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(streamed.xd, whole.xd, atol=1e-3, rtol=1e-4)
    assert streamed.dd == pytest.approx(whole.dd, rel=1e-5)
    assert streamed.num_rows == whole.num_rows
    assert places == (streamed.xx.data_ptr(), streamed.xd.data_ptr())


def weighted(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The rows as they are summed: inputs, and what a map must add."""
    size = x.square().mean(dim=1, keepdim=True).sqrt()
    return (x / size).double(), ((y - x) / size).double()


@pytest.mark.parametrize("rank", range(1, 7))
def test_a_low_rank_is_the_best_one_on_the_rows(rank: int) -> None:
    """Eckart and Young: the best predictions of a rank are the least-squares predictions' truncated decomposition."""
    x, y = rows(40), rows(40, seed=1)
    gram, (a, d) = Gram.of(x, y), weighted(rows(40), rows(40, seed=1))
    u, s, v = torch.linalg.svd(a @ torch.linalg.lstsq(a, d).solution, full_matrices=False)
    best = u[:, :rank] * s[:rank] @ v[:rank]
    down, up = gram.fitted_low_rank(1e-9, rank)
    assert down.shape == (rank, 6)
    assert up.shape == (6, rank)
    torch.testing.assert_close(a @ (up @ down).double().T, best, atol=1e-3, rtol=1e-3)
    assert gram.error(up @ down) == pytest.approx(float((d - best).square().sum(dim=1).mean()), rel=1e-4)


@given(seed=st.integers(0, 99), rank=st.integers(1, 5), strength=st.sampled_from([0.03, 0.3, 3.0]))
def test_no_other_map_of_the_rank_has_a_smaller_ridge_loss(seed: int, rank: int, strength: float) -> None:
    x, y = rows(30, seed=seed), rows(30, seed=seed + 1)
    a, d = weighted(x, y)
    penalty = strength * a.square().sum(dim=0).median()

    def loss(weight: Tensor) -> float:
        wide = weight.double()
        return float((a @ wide.T - d).square().sum() + penalty * wide.square().sum())

    down, up = Gram.of(x, y).fitted_low_rank(strength, rank)
    found, generator = loss(up @ down), torch.Generator().manual_seed(seed)
    for scale in (1e-2, 1e-1, 1.0):
        noise = [scale * torch.randn(m.shape, generator=generator) for m in (down, up)]
        assert loss((up + noise[1]) @ (down + noise[0])) >= found * (1 - 1e-6)
    u, s, v = torch.linalg.svd(Gram.of(x, y).fitted(strength))
    assert loss(u[:, :rank] * s[:rank] @ v[:rank]) >= found * (1 - 1e-6), "cutting the weights themselves is worse"


def test_a_smaller_rank_is_a_beginning_of_a_larger_one() -> None:
    gram = Gram.of(rows(40), rows(40, seed=1))
    (small_down, small_up), (down, up) = (gram.fitted_low_rank(0.1, rank) for rank in (2, 5))
    torch.testing.assert_close(small_up @ small_down, up[:, :2] @ down[:2], atol=1e-6, rtol=1e-5)


def test_few_directions_of_many_are_those_that_a_whole_decomposition_gives() -> None:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(400, 64, generator=generator)
    y = x + x @ torch.randn(64, 12, generator=generator) @ torch.randn(12, 64, generator=generator) / 8
    gram = Gram.of(x, y + 0.1 * torch.randn(400, 64, generator=generator))
    (few_down, few_up), (down, up) = gram.fitted_low_rank(0.1, 5), gram.fitted_low_rank(0.1, 64)
    torch.testing.assert_close(few_up @ few_down, up[:, :5] @ down[:5], atol=1e-5, rtol=1e-4)
    assert torch.equal(gram.fitted_low_rank(0.1, 5)[1], few_up), "the same each time"
