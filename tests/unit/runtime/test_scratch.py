"""Passes over committed tokens give what rounds of decoding give there, and leave the cache as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from tests.support.tiny_models import prompt_ids, tiny_target

from selfspec_runtime.errors import PlanError
from selfspec_runtime.layer_skip import LayerSkipSet
from selfspec_runtime.scratch import has_room, replay, replayed_logits, require_positions, rows_mask

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec_runtime.cache import KVCache
    from selfspec_runtime.target import Target

TEXT = prompt_ids(40)
FIRST, COUNT = 22, 7
SKIP = LayerSkipSet(attention=frozenset({1, 2}), mlp=frozenset({1, 2}))
PARTIAL = LayerSkipSet(attention=frozenset({1}), mlp=frozenset({2}))


def filled(target: Target, length: int, *, capacity: int = 256) -> KVCache:
    """A cache that holds the text's first tokens."""
    cache = target.new_cache(capacity=capacity)
    target.logits(torch.tensor(TEXT[:length]), cache, start=0)
    cache.length = length
    return cache


def as_rounds(target: Target, skip: LayerSkipSet) -> Tensor:
    """The draft's logits at each row as the first of a round."""
    program, rows = target.programs.without(skip), []
    for position in range(FIRST, FIRST + COUNT):
        cache = filled(target, position)
        rows.append(target.logits(torch.tensor(TEXT[position : position + 1]), cache, start=position, program=program))
    return torch.cat(rows)


@pytest.mark.parametrize("skip", [SKIP, PARTIAL], ids=["whole", "partial"])
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3_text", "gpt2", "gpt_neox", "phi3", "falcon"])
def test_rows_are_the_first_of_rounds(family: str, skip: LayerSkipSet) -> None:
    target = tiny_target(family)
    cache = filled(target, len(TEXT))
    logits = replayed_logits(
        target,
        torch.tensor(TEXT[FIRST : FIRST + COUNT]),
        cache,
        positions=torch.arange(FIRST, FIRST + COUNT),
        program=target.programs.without(skip),
    )
    torch.testing.assert_close(logits, as_rounds(target, skip), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
def test_what_is_committed_stays(family: str) -> None:
    target = tiny_target(family)
    cache = filled(target, len(TEXT))
    before = [held.clone() for layer in range(4) for held in cache.layer(layer)]
    positions = torch.tensor([FIRST, FIRST, 3, len(TEXT) - 1])
    replay(target, torch.tensor(TEXT)[positions], cache, positions=positions, program=target.full)
    assert cache.length == len(TEXT)
    assert all(map(torch.equal, before, [held for layer in range(4) for held in cache.layer(layer)]))
    token = torch.tensor(TEXT[:1])
    fresh = filled(target, len(TEXT))
    assert torch.equal(target.logits(token, cache, start=len(TEXT)), target.logits(token, fresh, start=len(TEXT)))


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3_text", "gpt2", "gpt_neox"])
def test_rows_may_share_a_position_and_do_not_see_each_other(family: str) -> None:
    target = tiny_target(family)
    cache, position = filled(target, 30), torch.tensor([30, 30, 30])
    ids = torch.tensor([TEXT[5], TEXT[6], TEXT[5]])
    logits = replayed_logits(target, ids, cache, positions=position, program=target.full)
    alone = [target.logits(ids[n : n + 1], filled(target, 30), start=30) for n in range(3)]
    torch.testing.assert_close(logits, torch.cat(alone), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(logits[0], logits[1])


def test_a_mask_shows_what_came_before_and_the_row_itself() -> None:
    mask = rows_mask(tiny_target("llama").parts, torch.tensor([2, 4, 2]), length=5, dtype=torch.float32)
    assert isinstance(mask, torch.Tensor)
    assert mask[0, 0].int().tolist() == [
        [1, 1, 0, 0, 0, 1, 0, 0],
        [1, 1, 1, 1, 0, 0, 1, 0],
        [1, 1, 0, 0, 0, 0, 0, 1],
    ]


def test_a_window_hides_what_lies_further_back() -> None:
    mask = rows_mask(tiny_target("mistral").parts, torch.tensor([20]), length=25, dtype=torch.float32)
    assert isinstance(mask, torch.Tensor)
    assert mask[0, 0, 0].nonzero().flatten().tolist() == [*range(5, 20), 25]


def test_a_family_that_goes_by_slots_is_refused() -> None:
    with pytest.raises(PlanError, match="does not take a position for each token"):
        require_positions(tiny_target("mpt"))
    require_positions(tiny_target("opt"))


def test_room_is_what_the_cache_has_without_growing() -> None:
    cache = filled(tiny_target("llama"), 40, capacity=64)
    assert has_room(cache, 24)
    assert not has_room(cache, 25)
