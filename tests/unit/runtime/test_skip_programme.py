"""The dynamic programme equals a slow one, and trying all sets where one is best; it changes nothing."""

from __future__ import annotations

from functools import cache
from itertools import combinations
from typing import TYPE_CHECKING

import pytest
import torch
from tests.support.counted_costs import counted_layers
from tests.support.faults import Fault, module_tree
from tests.support.tiny_models import build_model, planted_skip, prompt_ids, tiny_config, tiny_target
from torch.nn import functional

from selfspec_runtime.errors import PlanError
from selfspec_runtime.layer_skip import LayerSkipSet
from selfspec_runtime.program import LayerProgram
from selfspec_runtime.skip_programme import SkipProgramme, sub_layers, whole_layers
from selfspec_runtime.stubs import HandOut
from selfspec_runtime.target import Target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from selfspec_runtime.cache import KVCache
    from selfspec_runtime.skip_programme import Choice, SkipFront

TEXT = prompt_ids(24)
LAST = len(TEXT) - 1
NUM_LAYERS = 6
FAMILIES = ["llama", "mistral", "gpt2", "gpt_neox"]


@cache
def deep(family: str, *, scale: float = 0.3) -> Target:
    """A model of six layers, two of which say little."""
    model = build_model(tiny_config(family, num_hidden_layers=NUM_LAYERS, n_layer=NUM_LAYERS))
    return Target(planted_skip(model, attention=[2, 4], mlp=[2, 4], scale=scale))


def before_last(target: Target) -> KVCache:
    """A cache that holds everything but the last token."""
    cache = target.new_cache()
    target.logits(torch.tensor(TEXT[:LAST]), cache, start=0)
    cache.length = LAST
    return cache


def solved(target: Target, programme: SkipProgramme) -> SkipFront:
    return programme.solve(torch.tensor(TEXT[LAST:]), before_last(target), positions=torch.tensor([LAST]))


def state_after(target: Target, layer: int, skip: LayerSkipSet) -> Tensor:
    """The last token's hidden state after a layer, without the sub-layers of the set."""
    modules = list(target.programs.without(skip).modules)
    modules[layer] = out = HandOut(modules[layer], target.programs.output_length)
    program = LayerProgram(tuple(modules))
    target.advance(torch.tensor(TEXT[LAST:]), before_last(target), start=LAST, program=program)
    assert out.hidden is not None
    return out.hidden[0, 0]


def resemblance(target: Target, layer: int, skip: LayerSkipSet) -> float:
    full = state_after(target, layer, LayerSkipSet())
    return float(functional.cosine_similarity(state_after(target, layer, skip), full, dim=0))


def slowly(target: Target, num_units: int, choices: Sequence[Choice]) -> dict[int, LayerSkipSet]:
    """The table filled in entry by entry, each by a pass of its own."""
    table = {0: LayerSkipSet()}
    for layer in range(target.num_layers):
        grown = {}
        for units in range(num_units + 1):
            made = [(table[units - c.saved], c.skip_set(layer)) for c in choices if units - c.saved in table]
            options = [LayerSkipSet.at(old.positions | new.positions) for old, new in made]
            if options:
                grown[units] = max(options, key=lambda skip: resemblance(target, layer, skip))
        table = grown | {0: LayerSkipSet()}
    return table


@pytest.mark.parametrize("family", FAMILIES)
def test_whole_layers_equal_the_table_filled_in_one_by_one(family: str) -> None:
    target = deep(family)
    front = solved(target, SkipProgramme(target, 3, whole_layers()))
    assert dict(enumerate(front.skips)) == slowly(target, 3, whole_layers())


@pytest.mark.parametrize("family", FAMILIES)
def test_sub_layers_equal_it_too(family: str) -> None:
    target = tiny_target(family)
    choices = sub_layers(2, 1)
    front = solved(target, SkipProgramme(target, 5, choices))
    assert dict(enumerate(front.skips)) == slowly(target, 5, choices)


@pytest.mark.parametrize("family", FAMILIES)
def test_where_one_set_is_best_it_is_the_one_found_by_trying_all(family: str) -> None:
    target = deep(family, scale=0.02)
    front = solved(target, SkipProgramme(target, 2, whole_layers()))
    tried = [LayerSkipSet.whole(layers) for layers in combinations(range(NUM_LAYERS), 2)]
    best = max(tried, key=lambda skip: resemblance(target, NUM_LAYERS - 1, skip))
    assert front.skips[2] == best == LayerSkipSet.whole({2, 4})


@pytest.mark.parametrize("family", FAMILIES)
def test_cosines_are_those_of_drafts_that_leave_the_sets_out(family: str) -> None:
    target = deep(family)
    front = solved(target, SkipProgramme(target, 3, whole_layers()))
    expected = [resemblance(target, NUM_LAYERS - 1, skip) for skip in front.skips if skip is not None]
    assert front.cosines == pytest.approx(expected, abs=1e-4)


def test_all_tokens_are_meant_at_once() -> None:
    """Several tokens at their own positions: the cosine is the mean of what each alone would give."""
    target = deep("llama")
    cache = target.new_cache()
    target.logits(torch.tensor(TEXT), cache, start=0)
    cache.length = len(TEXT)
    programme = SkipProgramme(target, 1, whole_layers(), kept_layers=frozenset({0, 1, 3, 4, 5}))
    positions = torch.tensor([9, 15, LAST])
    ids = torch.tensor(TEXT)
    together = programme.solve(ids[positions], cache, positions=positions)
    alone = [programme.solve(ids[p][None], cache, positions=p[None]).cosines[1] for p in positions]
    assert together.skips[1] == LayerSkipSet.whole({2})
    assert together.cosines[1] == pytest.approx(sum(alone) / 3, abs=1e-5)


def test_bad_paths_are_given_up_and_kept_layers_are_kept() -> None:
    target = deep("llama")
    none = solved(target, SkipProgramme(target, 3, whole_layers(), least_cosine=0.9999))
    assert none.skips[0] == LayerSkipSet()
    assert set(none.skips[1:]) == {None}
    assert none.cosines[1:] == (0.0, 0.0, 0.0)
    kept = solved(target, SkipProgramme(target, 2, whole_layers(), kept_layers=frozenset({2, 4})))
    assert all(not {2, 4} & skip.attention for skip in kept.skips if skip is not None)


def test_it_costs_one_pass_over_the_branches() -> None:
    target = deep("llama")
    programme, cache = SkipProgramme(target, 3, whole_layers()), before_last(target)
    assert programme.num_rows == 4
    with counted_layers(target, row_cost=1.0) as count:
        programme.solve(torch.tensor(TEXT[LAST:]), cache, positions=torch.tensor([LAST]))
    assert count.work == NUM_LAYERS * 4


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_changed_even_by_an_exception(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = deep(family)
    programme, cache = SkipProgramme(target, 2, sub_layers(1, 1)), before_last(target)
    tree = module_tree(target.model)
    held = [states.clone() for layer in range(NUM_LAYERS) for states in cache.layer(layer)]
    arguments = (torch.tensor(TEXT[LAST:]), cache)
    first = programme.solve(*arguments, positions=torch.tensor([LAST]))
    layer = target.parts.layers[3]
    with monkeypatch.context() as patch:
        patch.setattr(type(getattr(layer, str(target.parts.mlp_name))), "forward", raising)
        with pytest.raises(Fault):
            programme.solve(*arguments, positions=torch.tensor([LAST]))
    assert module_tree(target.model) == tree
    assert all(map(torch.equal, held, [s for n in range(NUM_LAYERS) for s in cache.layer(n)]))
    assert programme.solve(*arguments, positions=torch.tensor([LAST])) == first


def raising(*_: object, **__: object) -> None:
    raise Fault


def test_families_that_cannot_are_refused() -> None:
    with pytest.raises(PlanError, match="does not take a position for each token"):
        SkipProgramme(tiny_target("mpt"), 1, whole_layers())
    with pytest.raises(PlanError, match="no MLP module"):
        SkipProgramme(tiny_target("opt"), 1, sub_layers(1, 1))
    assert solved(tiny_target("opt"), SkipProgramme(tiny_target("opt"), 2, whole_layers())).skips[2] is not None
