from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tiny_models import prompt_ids, tiny_target

from selfspec.prefix_cache import PrefixCache
from selfspec_runtime.sequence import common_prefix

IDS = st.lists(st.integers(0, 2), max_size=8)


@given(IDS, IDS)
def test_the_common_prefix_is_common_and_longest(first: list[int], second: list[int]) -> None:
    length = common_prefix(first, second)
    assert first[:length] == second[:length]
    assert first[: length + 1] != second[: length + 1] or length == min(len(first), len(second))


def test_what_is_reused_gives_the_logits_of_a_fresh_run() -> None:
    target = tiny_target("llama")
    first, second = prompt_ids(20), [*prompt_ids(12), *prompt_ids(9, seed=1)]
    prefix = PrefixCache(target)
    cache = prefix.reuse(first)
    target.logits(torch.tensor(first), cache, start=0)
    cache.length = len(first)
    reused = prefix.reuse(second)
    assert reused.length == 12
    logits = target.logits(torch.tensor(second[12:]), reused, start=12, keep=1)
    fresh = target.logits(torch.tensor(second), target.new_cache(), start=0, keep=1)
    assert torch.allclose(logits, fresh, atol=1e-4)


def test_at_least_one_token_is_left_to_run() -> None:
    prefix = PrefixCache(tiny_target("llama"))
    prefix.reuse([5, 6, 7]).length = 3
    assert prefix.reuse([5, 6, 7]).length == 2
    assert prefix.reuse([5]).length == 0


def test_what_lies_beyond_the_committed_length_does_not_count() -> None:
    prefix = PrefixCache(tiny_target("llama"))
    prefix.reuse([5, 6, 7, 8]).length = 2
    assert prefix.reuse([5, 6, 7, 8, 9]).length == 2
    prefix.cache.length = 7
    prefix.extend([10])
    assert prefix.reuse([5, 6, 7, 8, 9, 10, 11, 12, 13]).length == 6
