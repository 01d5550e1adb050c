from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from selfspec_runtime.rotary_table import STEP, RotaryTable

YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
DYNAMIC: dict[str, Any] = {"rope_type": "dynamic", "factor": 2.0}
FIXED: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.0},
    "yarn": YARN,
    "llama3": LLAMA3,
}


class Counted(LlamaRotaryEmbedding):
    asked = 0

    def forward(self, *given: Any, **named: Any) -> Any:
        self.asked += 1
        return super().forward(*given, **named)


def rotary(kind: dict[str, Any]) -> Counted:
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        max_position_embeddings=2048,
        rope_parameters={"rope_theta": 10_000.0, **kind},
    )
    return Counted(config)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", FIXED)
def test_what_is_looked_up_is_what_the_module_says(kind: str, dtype: torch.dtype) -> None:
    module = rotary(FIXED[kind])
    table = RotaryTable(module)
    for start, rows in ((0, 1), (17, 5), (STEP - 2, 4), (3, 1)):
        hidden = torch.zeros(1, rows, 64, dtype=dtype)
        found = table.block(hidden, start)
        wanted = module(hidden, position_ids=torch.arange(start, start + rows)[None])
        for own, theirs in zip(found, wanted, strict=True):
            assert own.is_contiguous()
            assert own.dtype == dtype
            torch.testing.assert_close(own, theirs, rtol=1e-6, atol=1e-6)


@given(start=st.integers(0, 3000), rows=st.integers(1, 40))
def test_a_position_has_the_same_bits_in_every_block(start: int, rows: int) -> None:
    table = RotaryTable(rotary(FIXED["default"]))
    block = table.block(torch.zeros(1, rows, 64), start)
    for row in range(rows):
        alone = table.block(torch.zeros(1, 1, 64), start + row)
        assert all(torch.equal(a[:, 0], b[:, row]) for a, b in zip(alone, block, strict=True))


def test_the_module_is_asked_once_for_many_positions() -> None:
    module = rotary(FIXED["default"])
    table = RotaryTable(module)
    for start in range(0, STEP, 64):
        table.block(torch.zeros(1, 64, 64), start)
    assert module.asked == 1
    table.block(torch.zeros(1, 1, 64), STEP)
    assert module.asked == 2


def test_frequencies_that_change_with_the_text_are_asked_for_at_every_pass() -> None:
    module, fresh = rotary(DYNAMIC), rotary(DYNAMIC)
    table = RotaryTable(module)
    for start in (5, 4000, 7):
        found = table.block(torch.zeros(1, 2, 64), start)
        wanted = fresh(torch.zeros(1, 2, 64), position_ids=torch.arange(start, start + 2)[None])
        assert all(torch.equal(own, theirs) for own, theirs in zip(found, wanted, strict=True))
    assert module.asked == 3
