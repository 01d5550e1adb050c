"""Attention by the own kernels, on the vector units and on the matrix units."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.nearness import assert_near
from torch import Tensor

from selfspec_runtime.native.library import native_status
from selfspec_runtime.native.operations import attention, can_attend

pytestmark = pytest.mark.skipif(native_status().kernels is None, reason=native_status().reason or "kernels at hand")

DTYPES = (torch.float32, torch.bfloat16)
DIMS = (48, 32, 64, 96, 128)  # the first is for the vector units alone
SCALE = 0.2


def case(rows: int, live: int, dim: int, dtype: torch.dtype, *, group: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, and keys and values of a cache that goes on behind what is live."""
    cache = torch.randn(2, 1, 2, live + 17, dim).to(dtype)
    return torch.randn(1, 2 * group, rows, dim).to(dtype), cache[0][:, :, :live], cache[1][:, :, :live]


def block_mask(rows: int, live: int, window: int | None = None) -> Tensor:
    at, columns = torch.arange(live - rows, live)[:, None], torch.arange(live)[None, :]
    return ((columns <= at) & (columns > at - (window or live)))[None, None]


def expected(query: Tensor, key: Tensor, value: Tensor, seen: Tensor, softcap: float | None) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    keys, values = (held.double().repeat_interleave(groups, dim=1) for held in (key, value))
    scores = query.double() @ keys.transpose(2, 3) * SCALE
    scores = scores if softcap is None else torch.tanh(scores / softcap) * softcap
    return (scores.masked_fill(~seen, float("-inf")).softmax(-1) @ values).transpose(1, 2)


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_softmax_attention(dtype: torch.dtype, dim: int, window: int | None, softcap: float | None) -> None:
    for rows, live in ((1, 1), (5, 23), (7, 64), (2, 100)):
        query, key, value = case(rows, live, dim, dtype)
        seen = block_mask(rows, live, window)
        assert can_attend(query, key, value, seen)
        found = attention(query, key, value, seen, scale=SCALE, softcap=softcap)
        assert_near(found, expected(query, key, value, seen, softcap))


@given(rows=st.integers(1, 32), group=st.integers(1, 9), live=st.integers(32, 90), dim=st.sampled_from(DIMS))
def test_any_number_of_queries_and_keys_is_taken(rows: int, group: int, live: int, dim: int) -> None:
    query, key, value = case(rows, live, dim, torch.bfloat16, group=group)
    seen = block_mask(rows, live)
    found = attention(query, key, value, seen, scale=SCALE, softcap=None)
    assert_near(found, expected(query, key, value, seen, None))


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_that_sees_nothing_says_nothing(dtype: torch.dtype, dim: int) -> None:
    query, key, value = case(3, 20, dim, dtype)
    seen = torch.ones(1, 1, 3, 20, dtype=torch.bool)
    seen[:, :, 1] = False
    found = attention(query, key, value, seen, scale=SCALE, softcap=None)
    assert not found[:, 1].any()
    assert torch.equal(found[:, ::2], attention(query[:, :, ::2], key, value, None, scale=SCALE, softcap=None))


@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_follows_a_row_or_stands_beside_it_leaves_no_trace_in_it(
    dtype: torch.dtype, dim: int, window: int | None
) -> None:
    for rows, live in ((7, 30), (16, 65)):
        query, key, value = case(rows, live, dim, dtype)
        seen = block_mask(rows, live, window)
        block = attention(query, key, value, seen, scale=SCALE, softcap=None)
        for row in range(rows):
            upto = live - rows + 1 + row
            mask = None if window is None else seen[:, :, row : row + 1, :upto]
            own = query[:, :, row : row + 1], key[:, :, :upto], value[:, :, :upto]
            assert torch.equal(attention(*own, mask, scale=SCALE, softcap=None)[:, 0], block[:, row])


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_no_number_is_heard_by_those_who_see_it_alone(dtype: torch.dtype, dim: int, broken: float) -> None:
    query, key, value = case(4, 40, dim, dtype)
    seen = block_mask(4, 40)
    clean = attention(query, key, value, seen, scale=SCALE, softcap=None)
    value[:, :, 38] = broken
    key[:, :, 39] = float("nan")  # the last row's alone
    found = attention(query, key, value, seen, scale=SCALE, softcap=None)
    assert_near(found[:, :2], clean[:, :2])
    assert not found[:, 2].isfinite().any()
    assert found[:, 3].isnan().all()


def test_it_refuses_what_it_cannot_read() -> None:
    query, key = torch.randn(1, 4, 2, 32), torch.randn(1, 2, 9, 32)
    mask = torch.ones(1, 1, 2, 9, dtype=torch.bool)
    assert can_attend(query, key, key, mask)
    assert not can_attend(query, key, key, mask.float())
    assert not can_attend(query[..., :20], key[..., :20], key[..., :20], mask)
    assert not can_attend(query.half(), key.half(), key.half(), mask)
    assert not can_attend(query.repeat(2, 1, 1, 1), key, key, mask)
    assert not can_attend(query, key.transpose(2, 3), key, mask)
