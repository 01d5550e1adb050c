"""The model's layers during a pass of a program, after it, and when somebody else has replaced them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.support.faults import Fault, module_tree
from tests.support.tiny_models import prompt_ids, tiny_model, tiny_target
from torch import nn

from selfspec_runtime.architecture import find_parts
from selfspec_runtime.errors import UsageError
from selfspec_runtime.layer_stack import LayerStack
from selfspec_runtime.packing import pack_model
from selfspec_runtime.program import LayerProgram
from selfspec_runtime.target import Target

FAMILIES = ["llama", "gemma3_text", "gpt2", "gpt_neox"]


@pytest.mark.parametrize("throws", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_layers_and_head_are_in_place_during_the_run_and_back_after_it(family: str, throws: bool) -> None:
    model = tiny_model(family)
    parts = find_parts(model)
    tree, head = module_tree(model), nn.Identity()
    program = LayerProgram(tuple(nn.Identity() for _ in parts.layers), head)

    def run() -> str:
        assert tuple(parts.layers) == program.modules
        assert model.get_output_embeddings() is head
        if throws:
            raise Fault
        return "ran"

    if throws:
        with pytest.raises(Fault):
            LayerStack(parts).run(program, run)
    else:
        assert LayerStack(parts).run(program, run) == "ran"
    assert module_tree(model) == tree


def test_a_program_without_a_head_keeps_the_models_own() -> None:
    parts = tiny_target("llama").parts
    program = tiny_target("llama").full
    assert LayerStack(parts).run(program, lambda: parts.model.get_output_embeddings()) is parts.head


def test_a_program_of_fewer_layers_leaves_nothing_behind() -> None:
    parts = tiny_target("llama").parts
    assert LayerStack(parts).run(LayerProgram(tuple(parts.layers)[:1]), lambda: len(parts.layers)) == 1
    assert len(parts.layers) == 4


def test_passes_of_other_threads_wait_whoever_made_their_engine() -> None:
    parts = find_parts(tiny_model("gpt2"))
    first, second = LayerStack(parts), LayerStack(find_parts(parts.model))
    program = LayerProgram(tuple(nn.Identity() for _ in parts.layers))

    def is_free() -> bool:
        if not second.lock.acquire(blocking=False):
            return False
        second.lock.release()  # or its thread would hold it for good, and all that follows would wait
        return True

    with ThreadPoolExecutor(1) as other:
        assert not first.run(program, lambda: other.submit(is_free).result())
        assert other.submit(is_free).result()


def replace_layer(layers: nn.ModuleList) -> None:
    layers[2] = copy.deepcopy(layers[1])


def shorten(layers: nn.ModuleList) -> None:
    del layers[-1]


@pytest.mark.parametrize("change", [replace_layer, shorten])
@pytest.mark.parametrize("rebuilt", [True, False])
def test_layers_that_were_replaced_are_noticed(change: Callable[[nn.ModuleList], None], rebuilt: bool) -> None:
    model = copy.deepcopy(tiny_model("llama"))
    if rebuilt:
        pack_model(model)
    target, ids = Target(model), torch.tensor(prompt_ids(5))
    target.logits(ids, target.new_cache(), start=0)
    change(model.model.layers)
    with pytest.raises(UsageError, match="Hand the model over again"):
        target.logits(ids, target.new_cache(), start=0)
    model.config.num_hidden_layers = len(model.model.layers)
    again = Target(model)
    again.logits(ids, again.new_cache(), start=0)


def test_a_list_of_layers_that_was_replaced_is_noticed() -> None:
    model = copy.deepcopy(tiny_model("llama"))
    stack = LayerStack(find_parts(model))
    model.model.layers = nn.ModuleList(model.model.layers)
    with pytest.raises(UsageError, match="Hand the model over again"):
        stack.require_own()
