"""The shared cache: written at explicit positions, rolled back by its length, grown without loss."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from selfspec_runtime import cache as cache_module
from selfspec_runtime.cache import GROWTH_STEP, KVCache
from selfspec_runtime.errors import CapacityError

KV_HEADS, DIM, VALUE_DIM = 2, 4, 3


def states(rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(1, KV_HEADS, rows, DIM, generator=generator)
    return keys, torch.randn(1, KV_HEADS, rows, VALUE_DIM, generator=generator)


def write(cache: KVCache, start: int, rows: int, *, seed: int = 0, layer: int = 0) -> tuple[Tensor, Tensor]:
    cache.begin(start, rows)
    return cache.update(*states(rows, seed), layer)


@given(
    passes=st.lists(st.tuples(st.integers(1, 90), st.integers(0, 90)), min_size=1, max_size=12),
    capacity=st.sampled_from([1, 8, 300]),
)
def test_it_holds_what_a_plain_list_would(passes: list[tuple[int, int]], capacity: int) -> None:
    cache, plain_keys, plain_values = KVCache(1, capacity=capacity), [], []
    for number, (rows, rejected) in enumerate(passes):
        start = cache.length
        keys, values = states(rows, number)
        plain_keys[start:] = keys[0].unbind(1)
        plain_values[start:] = values[0].unbind(1)
        live_keys, live_values = write(cache, start, rows, seed=number)
        assert cache.live == start + rows <= cache.capacity
        assert torch.equal(live_keys[0], torch.stack(plain_keys, dim=1))
        assert torch.equal(live_values[0], torch.stack(plain_values, dim=1))
        cache.length = max(start + rows - rejected, start)
    committed = cache.layer(0)[0]
    assert committed.shape == (1, KV_HEADS, cache.length, DIM)
    assert all(map(torch.equal, committed[0].unbind(1), plain_keys[: cache.length]))


def test_what_was_rejected_is_overwritten_before_it_is_seen() -> None:
    cache = KVCache(1)
    write(cache, 0, 5)
    cache.length = 2
    keys, _ = write(cache, 2, 1, seed=9)
    assert keys.shape[2] == 3
    assert torch.equal(keys[:, :, 2:], states(1, 9)[0])


def test_a_pass_returns_views_and_copies_nothing() -> None:
    cache = KVCache(1, capacity=16)
    first, _ = write(cache, 0, 3)
    second, _ = write(cache, 3, 1)
    assert first.data_ptr() == second.data_ptr()


def test_layers_do_not_share_their_contents() -> None:
    cache = KVCache(2)
    write(cache, 0, 3, layer=0)
    write(cache, 0, 3, seed=5, layer=1)
    cache.length = 3
    assert torch.equal(cache.layer(0)[0], states(3)[0])
    assert torch.equal(cache.layer(1)[0], states(3, 5)[0])


def test_a_layer_that_was_never_run_holds_nothing() -> None:
    with pytest.raises(IndexError, match="Layer 1 has written nothing yet"):
        KVCache(2).layer(1)


def test_it_grows_by_doubling_up_to_the_context() -> None:
    cache = KVCache(1, capacity=GROWTH_STEP, max_positions=1000)
    cache.begin(0, GROWTH_STEP)
    assert cache.capacity == GROWTH_STEP
    cache.begin(GROWTH_STEP, 1)
    assert cache.capacity == 2 * GROWTH_STEP
    cache.begin(900, 1)
    assert cache.capacity == 1000
    assert KVCache(1, capacity=5000, max_positions=1000).capacity == 1000


def test_growing_that_is_interrupted_is_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = KVCache(3, capacity=4)
    for layer in range(3):
        cache.begin(0, 4)
        cache.update(*(torch.full((1, KV_HEADS, 4, 4), float(layer)) for _ in range(2)), layer)
    assert cache.slots(kv_heads=KV_HEADS, dim=4, like=torch.zeros(1)) is not None
    widened, calls = cache_module._widened, []

    def interrupted(held: Tensor, capacity: int) -> Tensor:
        calls.append(capacity)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return widened(held, capacity)

    monkeypatch.setattr(cache_module, "_widened", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.begin(4, 1)
    assert cache.slots(kv_heads=KV_HEADS, dim=4, like=torch.zeros(1)) is None
    cache.begin(4, 1)
    assert cache.slots(kv_heads=KV_HEADS, dim=4, like=torch.zeros(1)) is not None
    assert {held.shape[2] for held in (*cache.storage()[0], *cache.storage()[1])} == {cache.capacity}
    cache.length = 4
    assert [cache.layer(layer)[1].unique().tolist() for layer in range(3)] == [[0.0], [1.0], [2.0]]


def test_kernels_get_no_slots_in_a_cache_of_another_kind() -> None:
    cache = KVCache(1)
    write(cache, 0, 2)
    assert cache.slots(kv_heads=KV_HEADS, dim=DIM, like=torch.zeros(1)) is None  # values are narrower than keys
    plain = KVCache(2)
    plain.begin(0, 1)
    asked = {"kv_heads": KV_HEADS, "dim": DIM}
    assert plain.slots(**asked, like=torch.zeros(1)) is not None
    assert plain.slots(**asked, like=torch.zeros(1, dtype=torch.bfloat16)) is None
    assert plain.slots(kv_heads=1, dim=DIM, like=torch.zeros(1)) is None


def test_growing_keeps_what_layers_hold_that_this_pass_does_not_run() -> None:
    cache = KVCache(2, capacity=8)
    write(cache, 0, 8, layer=1)
    write(cache, 8, 4, seed=1, layer=0)
    cache.length = 8
    assert torch.equal(cache.layer(1)[0], states(8)[0])


def test_beyond_the_context_is_refused_and_changes_nothing() -> None:
    cache = KVCache(1, capacity=4, max_positions=10)
    write(cache, 0, 4)
    cache.length = 4
    with pytest.raises(CapacityError, match=r"needs 11 positions.*holds 10"):
        cache.begin(4, 7)
    assert (cache.length, cache.live, cache.capacity) == (4, 4, 4)
    cache.begin(4, 6)
    assert cache.live == 10


def test_families_that_ask_are_told_the_positions_before_the_pass() -> None:
    cache = KVCache(1)
    assert cache.get_seq_length() == 0
    cache.begin(7, 3)
    assert cache.get_seq_length() == cache.get_seq_length(3) == 7


def test_its_memory_is_counted_in_the_dtype_that_is_held() -> None:
    cache = KVCache(3, capacity=10)
    assert cache.num_bytes == 0
    cache.begin(0, 2)
    keys, values = states(2)
    cache.update(keys.bfloat16(), values.bfloat16(), 1)
    assert cache.num_bytes == 10 * KV_HEADS * (DIM + VALUE_DIM) * 2
