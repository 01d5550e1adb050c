"""Grouped attention against the textbook: repeated heads, one softmax per row, in double precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from selfspec_runtime.attention import ATTENTION_NAME, grouped_attention, register_attention
from selfspec_runtime.masks import causal_mask

HEADS, DIM, VALUE_DIM = 4, 8, 6


def plain_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seen: Tensor,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
) -> Tensor:
    """One head and one row at a time."""
    out = torch.zeros(1, query.shape[2], HEADS, value.shape[3], dtype=torch.float64)
    groups = HEADS // key.shape[1]
    for head in range(HEADS):
        keys, values = key[0, head // groups].double(), value[0, head // groups].double()
        for row in range(query.shape[2]):
            scores = keys @ query[0, head, row].double() * (DIM**-0.5 if scaling is None else scaling)
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            exps = scores.exp() * seen[0, 0, row]
            sink = 0.0 if s_aux is None else s_aux[head].double().exp()
            out[0, row, head] = (exps / (exps.sum() + sink)) @ values
    return out


def tensors(rows: int, live: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows * 100 + live)
    return (
        torch.randn(1, HEADS, rows, DIM, generator=generator) * 2,
        torch.randn(1, kv_heads, live, DIM, generator=generator),
        torch.randn(1, kv_heads, live, VALUE_DIM, generator=generator),
    )


def seen_by(rows: int, live: int, window: int | None = None) -> Tensor:
    return causal_mask(torch.arange(live - rows, live), torch.arange(live), window)


def additive(seen: Tensor) -> Tensor:
    return torch.where(seen, 0.0, torch.finfo(torch.float32).min)


EXTRAS: dict[str, dict[str, Any]] = {
    "nothing else": {},
    "scaling": {"scaling": 0.7},
    "softcap": {"softcap": 1.5},
    "sinks": {"s_aux": torch.tensor([0.5, -1.0, 2.0, 0.0])},
    "all of them": {"scaling": 0.7, "softcap": 1.5, "s_aux": torch.tensor([0.5, -1.0, 2.0, 0.0])},
}


@pytest.mark.parametrize("form", ["boolean", "additive"])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize(("rows", "live"), [(1, 1), (1, 9), (4, 9), (5, 5)])
def test_it_is_the_textbook(rows: int, live: int, kv_heads: int, extra: str, window: int | None, form: str) -> None:
    query, key, value = tensors(rows, live, kv_heads)
    seen = seen_by(rows, live, window)
    mask = seen if form == "boolean" else additive(seen)
    out, weights = grouped_attention(nn.Module(), query, key, value, mask, **EXTRAS[extra])
    assert weights is None
    assert out.shape == (1, rows, HEADS, VALUE_DIM)
    assert out.is_contiguous()
    expected = plain_attention(query, key, value, seen, **EXTRAS[extra])
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize(("rows", "live"), [(1, 7), (3, 7), (7, 7)])
def test_a_missing_mask_is_causal_and_never_bidirectional(rows: int, live: int, extra: str) -> None:
    query, key, value = tensors(rows, live, 2)
    out, _ = grouped_attention(nn.Module(), query, key, value, None, **EXTRAS[extra])
    masked, _ = grouped_attention(nn.Module(), query, key, value, seen_by(rows, live), **EXTRAS[extra])
    torch.testing.assert_close(out, masked)
    if rows > 1:
        everything = torch.ones(1, 1, rows, live, dtype=torch.bool)
        assert not torch.allclose(
            out, grouped_attention(nn.Module(), query, key, value, everything, **EXTRAS[extra])[0]
        )


def test_a_module_that_is_not_causal_sees_everything_without_a_mask() -> None:
    module = nn.Module()
    module.is_causal = False  # type: ignore[assignment]
    query, key, value = tensors(3, 5, 2)
    everything = torch.ones(1, 1, 3, 5, dtype=torch.bool)
    expected = plain_attention(query, key, value, everything)
    torch.testing.assert_close(grouped_attention(module, query, key, value, None)[0].double(), expected)


@pytest.mark.parametrize("extra", EXTRAS)
def test_half_precision_stays_in_its_dtype(extra: str) -> None:
    query, key, value = (t.bfloat16() for t in tensors(4, 9, 2))
    mask = additive(seen_by(4, 9)).bfloat16()
    out, _ = grouped_attention(nn.Module(), query, key, value, mask, **EXTRAS[extra])
    assert out.dtype == torch.bfloat16
    expected = plain_attention(query, key, value, seen_by(4, 9), **EXTRAS[extra])
    torch.testing.assert_close(out.double(), expected, rtol=0.03, atol=0.03)


def test_transformers_knows_it_by_name() -> None:
    register_attention()
    register_attention()
    assert AttentionInterface()[ATTENTION_NAME] is grouped_attention
