"""Layer programs on real models: what runs, and that the model is whole again afterwards."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from tests.support.tiny_models import planted, planted_skip, prompt_ids, tiny_target
from torch import Tensor, nn

from selfspec_runtime.errors import PlanError
from selfspec_runtime.layer_skip import LayerSkipSet
from selfspec_runtime.program import LayerProgram, ProgramBuilder
from selfspec_runtime.stubs import SkippedLayer
from selfspec_runtime.target import Target

FAMILIES = ["llama", "gemma3_text", "gpt2", "gpt_neox"]
IDS = torch.tensor(prompt_ids(9))


def logits(target: Target, program: LayerProgram | None = None) -> Tensor:
    return target.logits(IDS, target.new_cache(), start=0, program=program)


def skips(*, attention: tuple[int, ...] = (), mlp: tuple[int, ...] = ()) -> LayerSkipSet:
    return LayerSkipSet(attention=frozenset(attention), mlp=frozenset(mlp))


@pytest.mark.parametrize("family", FAMILIES)
def test_an_exit_is_the_model_whose_later_layers_write_nothing(family: str) -> None:
    target = tiny_target(family)
    program, out = target.programs.exit_at(2)
    changed = Target(planted(target.model, exit_layer=2))
    torch.testing.assert_close(logits(target, program), logits(changed), rtol=1e-4, atol=1e-4)
    assert out.hidden is not None
    assert out.hidden.shape == (1, len(IDS), 64)
    assert not torch.allclose(logits(target, program), logits(target), atol=1e-2)


@pytest.mark.parametrize("exit_layer", [1, 2, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_resuming_from_an_exit_is_the_full_pass(family: str, exit_layer: int) -> None:
    target, expected = tiny_target(family), logits(tiny_target(family))
    cache = target.new_cache()
    first, out = target.programs.exit_at(exit_layer)
    target.advance(IDS, cache, start=0, program=first)
    rest, into = target.programs.resume_at(exit_layer)
    into.hidden = out.hidden
    resumed = target.logits(IDS, cache, start=0, program=rest)
    torch.testing.assert_close(resumed, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("attention", "mlp"), [((1,), ()), ((), (2,)), ((0, 3), (1,)), ((2,), (2,)), ((0, 1, 2, 3), (0, 1, 2, 3))]
)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_skip_set_is_the_model_in_which_these_write_nothing(
    family: str, attention: tuple[int, ...], mlp: tuple[int, ...]
) -> None:
    target = tiny_target(family)
    program = target.programs.without(skips(attention=attention, mlp=mlp))
    changed = Target(planted_skip(target.model, attention=attention, mlp=mlp))
    torch.testing.assert_close(logits(target, program), logits(changed), rtol=1e-4, atol=1e-4)


def test_a_layer_that_is_left_out_whole_is_not_run() -> None:
    programs = tiny_target("llama").programs
    program = programs.without(skips(attention=(1,), mlp=(1,)))
    assert isinstance(program.modules[1], SkippedLayer)
    assert program.modules[0] is programs.parts.layers[0]
    assert programs.without(skips()) == programs.full()


def test_a_skip_set_applies_to_other_layers_and_another_head() -> None:
    target, head = tiny_target("llama"), nn.Identity()
    layers = [copy.copy(layer) for layer in target.parts.layers]
    program = target.programs.without(skips(attention=(1,), mlp=(1,)), layers=layers, head=head)
    assert program.modules[0] is layers[0]
    assert program.modules[1].layer is layers[1]
    assert logits(target, program).shape == (len(IDS), 64)


def test_a_layer_that_does_not_exist_is_refused() -> None:
    with pytest.raises(PlanError, match="layers 0 to 3"):
        tiny_target("llama").programs.without(skips(mlp=(4,)))


@pytest.mark.parametrize(("role", "skip"), [("attention", skips(attention=(1,))), ("MLP", skips(mlp=(1,)))])
def test_a_family_without_the_sublayer_can_only_skip_whole_layers(role: str, skip: LayerSkipSet) -> None:
    programs = tiny_target("llama").programs
    nameless = ProgramBuilder(replace(programs.parts, attention_name=None, mlp_name=None), programs.outputs)
    with pytest.raises(PlanError, match=f"no {role} module of their own. Skip whole layers"):
        nameless.without(skip)
    assert isinstance(nameless.without(skips(attention=(1,), mlp=(1,))).modules[1], SkippedLayer)
