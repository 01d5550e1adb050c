"""Who sees whom, in the form that each family and each attention wants it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tiny_models import WINDOW, tiny_target
from torch import Tensor

from selfspec_runtime.masks import block_mask, causal_mask


@given(start=st.integers(0, 40), rows=st.integers(1, 9), window=st.none() | st.integers(1, 50))
def test_a_row_sees_itself_and_what_came_before_within_the_window(start: int, rows: int, window: int | None) -> None:
    positions, columns = torch.arange(start, start + rows), torch.arange(start + rows)
    mask = causal_mask(positions, columns, window)
    assert mask.dtype == torch.bool
    assert mask.shape == (1, 1, rows, start + rows)
    reach = start + rows if window is None else window
    expected = [[row - reach < column <= row for column in columns.tolist()] for row in positions.tolist()]
    assert mask[0, 0].tolist() == expected


def mask_of(family: str, attention: str, start: int = 30, rows: int = 4) -> Tensor | dict[str, Tensor]:
    parts = tiny_target(family, attention=attention).parts
    return block_mask(parts, start=start, num_tokens=rows, dtype=torch.float32, device=torch.device("cpu"))


def seen(window: int | None, start: int = 30, rows: int = 4) -> Tensor:
    return causal_mask(torch.arange(start, start + rows), torch.arange(start + rows), window)


@pytest.mark.parametrize("attention", ["selfspec", "sdpa", "eager"])
@pytest.mark.parametrize(("family", "window"), [("llama", None), ("mistral", WINDOW)])
def test_one_kind_of_layer_takes_one_mask(family: str, window: int | None, attention: str) -> None:
    mask = mask_of(family, attention)
    assert isinstance(mask, Tensor)
    if attention == "eager":
        assert mask.dtype == torch.float32
        assert torch.equal(mask == 0, seen(window))
        assert (mask[~seen(window)] < -1e30).all()
    else:
        assert torch.equal(mask, seen(window))


def test_two_kinds_of_layers_take_a_mask_each() -> None:
    mask = mask_of("gemma3_text", "selfspec")
    assert isinstance(mask, dict)
    assert mask.keys() == {"sliding_attention", "full_attention"}
    assert torch.equal(mask["sliding_attention"], seen(WINDOW))
    assert torch.equal(mask["full_attention"], seen(None))


def test_an_additive_mask_is_finite_in_half_precision() -> None:
    parts = tiny_target("llama", attention="eager").parts
    mask = block_mask(parts, start=0, num_tokens=3, dtype=torch.float16, device=torch.device("cpu"))
    assert isinstance(mask, Tensor)
    assert mask.dtype == torch.float16
    assert mask.isfinite().all()
