"""Shapes of trees, what each row sees, at which position it stands, and what moves when a path is accepted."""

from __future__ import annotations

from itertools import pairwise, product
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tiny_models import FAMILIES, WINDOW, prompt_ids, tiny_target

from selfspec_runtime.cache import KVCache
from selfspec_runtime.drafts.draft import Branch, Draft
from selfspec_runtime.sequence import Sequence
from selfspec_runtime.tree import tree_mask as mask_module
from selfspec_runtime.tree.token_tree import PlacedTree, TokenTree
from selfspec_runtime.tree.tree_mask import tree_mask, tree_positions
from selfspec_runtime.verifier import Verifier

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec_runtime.target import Target

CPU = torch.device("cpu")
WITHOUT_POSITIONS = ("mpt",)
TREES = st.lists(st.integers(0, 100), max_size=9).map(
    lambda choices: TokenTree((-1, *(choice % (row + 1) for row, choice in enumerate(choices))))
)


@given(tree=TREES)
def test_a_path_goes_from_the_last_committed_token_along_parents(tree: TokenTree) -> None:
    for row, path in enumerate(tree.paths):
        assert (path[0], path[-1]) == (0, row)
        assert all(tree.parents[after] == before for before, after in pairwise(path))
        assert tree.depths[row] == len(path) - 1


def test_a_caterpillar_is_a_chain_whose_branches_stand_beside_it() -> None:
    tree = TokenTree.caterpillar(3, [0, 2, 2])
    assert tree.parents == (-1, 0, 1, 2, 0, 2, 2)
    assert tree.depths == (0, 1, 2, 3, 1, 3, 3)
    assert tree.paths[5] == (0, 1, 2, 5)
    assert PlacedTree(tree, 10).slots_to(5) == [10, 11, 12, 15]
    assert TokenTree.caterpillar(0, []).parents == (-1,)


@pytest.mark.parametrize("parents", [(0,), (-1, 1), (-1, 0, 2), (-1, -1)])
def test_a_row_that_follows_none_is_no_tree(parents: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError):
        TokenTree(parents)


def sees(placed: PlacedTree, row: int, slot: int, window: int | None) -> bool:
    """What a row sees, said slot by slot."""
    position = placed.start + placed.tree.depths[row]
    inside = slot - placed.start
    where = slot if inside < 0 else placed.start + placed.tree.depths[inside]
    near = window is None or where > position - window
    return near and (inside < 0 or inside in placed.tree.paths[row])


@given(tree=TREES, start=st.integers(0, 2 * WINDOW), first=st.integers(0, 9))
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3_text"])
def test_a_row_sees_its_own_path_and_what_the_window_reaches(
    family: str, tree: TokenTree, start: int, first: int
) -> None:
    parts, placed = tiny_target(family).parts, PlacedTree(tree, start)
    first = min(first, len(tree) - 1)
    rows = range(first, len(tree))
    found = tree_mask(parts, placed, start=start + first, num_tokens=len(rows), dtype=torch.float32, device=CPU)
    masks = found if isinstance(found, dict) else {"every layer": found}
    windows = dict(zip(parts.layer_kinds or ["every layer"], parts.windows, strict=False))
    assert set(masks) == set(windows)
    for kind, mask in masks.items():
        expected = [[sees(placed, row, slot, windows[kind]) for slot in range(start + len(tree))] for row in rows]
        assert mask.shape == (1, 1, len(rows), start + len(tree))
        assert mask[0, 0].tolist() == expected, kind


def test_a_rows_position_is_its_depth_and_not_its_slot() -> None:
    placed = PlacedTree(TokenTree.caterpillar(2, [0, 1]), 5)
    assert tree_positions(placed, start=5, num_tokens=5, device=CPU).tolist() == [5, 6, 7, 6, 7]
    assert tree_positions(placed, start=8, num_tokens=2, device=CPU).tolist() == [6, 7]


@given(path=st.sets(st.integers(1, 12), max_size=8).map(sorted), start=st.integers(0, 6))
def test_compaction_moves_the_path_together_and_touches_nothing_before(path: list[int], start: int) -> None:
    cache = KVCache(2, capacity=32)
    slots = [start, *(start + row for row in path)]
    for layer in range(2):
        cache.begin(0, start + 13)
        numbers = torch.arange(float(start + 13)).view(1, 1, -1, 1) + 100 * layer
        cache.update(numbers, -numbers, layer)
    cache.length = start
    cache.compact(slots, start=start)
    assert cache.length == start
    cache.length = start + len(slots)
    for layer in range(2):
        keys, values = cache.layer(layer)
        assert keys.flatten().tolist() == [100 * layer + slot for slot in [*range(start), *slots]]
        assert torch.equal(values, -keys)


def test_a_path_that_is_in_place_is_not_copied() -> None:
    cache = KVCache(1)
    cache.begin(0, 4)
    cache.update(torch.ones(1, 1, 4, 1), torch.ones(1, 1, 4, 1), 0)
    cache.length = 4
    version = cache.layer(0)[0]._version
    cache.compact([1, 2, 3], start=1)
    assert cache.layer(0)[0]._version == version
    KVCache(1).compact([3], start=1)  # a layer that has written nothing has nothing to move


PROMPT, BLOCK = prompt_ids(30), prompt_ids(7, seed=5)
BRANCHES = tuple(Branch(place, token, 0.1) for place, token in zip([0, 0, 1, 2], BLOCK[3:], strict=True))


def worst_row(target: Target, draft: Draft) -> float:
    """Largest relative distance of a verified row from the last row of a prefill of the same text."""
    sequence, cache = Sequence(PROMPT, device=CPU), target.new_cache()
    target.logits(sequence.tensor()[:-1], cache, start=0)
    cache.length = len(PROMPT) - 1
    rows = Verifier(target).verify(sequence, draft, cache)
    block = [PROMPT[-1], *draft.node_ids]
    worst = 0.0
    for row, path in zip(rows, draft.tree.paths, strict=True):
        text = torch.tensor([*PROMPT[:-1], *(block[each] for each in path)])
        alone = target.logits(text, target.new_cache(), start=0, keep=1)[0]
        worst = max(worst, relative(row, alone))
    return worst


def relative(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())


@pytest.mark.parametrize("family", FAMILIES)
def test_every_row_is_that_of_its_own_text(family: str) -> None:
    target = tiny_target(family)
    assert target.takes_trees == (family not in WITHOUT_POSITIONS)
    if target.takes_trees:
        assert worst_row(target, Draft(token_ids=BLOCK[:3], probs=[None] * 3, branches=BRANCHES)) < 2e-5


def siblings_see_each_other(tree: TokenTree, device: torch.device) -> Tensor:
    related = [
        [a in path or tree.parents[a] == tree.parents[row] for a in range(len(tree))]
        for row, path in enumerate(tree.paths)
    ]
    return torch.tensor(related, device=device)


def positions_by_slot(placed: PlacedTree, *, start: int, num_tokens: int, device: torch.device) -> Tensor:
    del placed
    return torch.arange(start, start + num_tokens, device=device)


@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral"])
@pytest.mark.parametrize("fault", ["siblings see each other", "positions by slot"])
def test_a_wrong_mask_and_wrong_positions_are_caught(family: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "positions by slot":
        monkeypatch.setattr("selfspec_runtime.pass_input.tree_positions", positions_by_slot)
    else:
        monkeypatch.setattr(mask_module, "_related", siblings_see_each_other)
    draft = Draft(token_ids=BLOCK[:3], probs=[None] * 3, branches=BRANCHES)
    assert worst_row(tiny_target(family), draft) > 1e-3


def test_the_nodes_of_a_draft_are_its_chain_and_then_its_branches() -> None:
    draft = Draft(token_ids=[7, 8], probs=[None, None], branches=(Branch(1, 5, 0.2), Branch(0, 5, 0.1)))
    assert (len(draft), draft.node_ids) == (2, [7, 8, 5, 5])
    assert draft.tree.parents == (-1, 0, 1, 1, 0)
    found = {key: draft.branch_to(*key) for key in product(range(3), (5, 7, 8))}
    assert {key: number for key, number in found.items() if number is not None} == {(0, 5): 1, (1, 5): 0}
    assert [draft.row_of(number) for number in (0, 1)] == [3, 4]
    assert draft.path(1, 0) == [7, 5]
    assert draft.path(2, None) == [7, 8]
