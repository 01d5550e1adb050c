"""A prompt that is read in blocks says what it says in one pass."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tiny_models import prompt_ids, tiny_target

from selfspec_runtime import prompt_pass
from selfspec_runtime.engine import Engine
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.prompt_pass import read_prompt, row_blocks
from selfspec_runtime.target import Target


@given(st.integers(0, 50), st.integers(1, 200), st.integers(1, 5_000))
def test_blocks_follow_one_another_and_hold_no_more_than_allowed(start: int, count: int, max_pairs: int) -> None:
    end = start + count
    blocks = list(row_blocks(start, end, max_pairs=max_pairs))
    assert [position for first, last in blocks for position in range(first, last)] == list(range(start, end))
    assert all(last > first for first, last in blocks)
    assert all((last - first) * end <= max_pairs or last - first == 1 for first, last in blocks)


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt_oss", "gpt2"])
def test_blocks_say_what_one_pass_says(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, ids = tiny_target(family), torch.tensor(prompt_ids(60))
    whole = read_prompt(target, ids, target.new_cache(), start=0)
    monkeypatch.setattr(prompt_pass, "MAX_PAIRS", 60 * 17)
    cache = target.new_cache()
    torch.testing.assert_close(read_prompt(target, ids, cache, start=0), whole, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(read_prompt(target, ids, cache, start=41), whole, rtol=1e-4, atol=1e-4)


def test_a_short_prompt_is_one_pass_and_a_long_one_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    target, rows = Target(tiny_target("llama").model), []
    logits, advance = target.passes.logits, target.passes.advance
    monkeypatch.setattr(
        target.passes, "logits", lambda given, *a, **k: (rows.append(given.num_tokens), logits(given, *a, **k))[1]
    )
    monkeypatch.setattr(
        target.passes, "advance", lambda given, *a, **k: (rows.append(given.num_tokens), advance(given, *a, **k))[1]
    )
    engine, once = Engine(target), GenerationSettings(max_new_tokens=1)
    first = engine.generate(prompt_ids(60), once).token_ids
    assert rows == [60]
    monkeypatch.setattr(prompt_pass, "MAX_PAIRS", 60 * 25)
    rows.clear()
    assert engine.generate(prompt_ids(60), once).token_ids == first
    assert rows == [25, 25, 10]
