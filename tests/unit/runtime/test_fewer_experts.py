"""Drafts with fewer routed experts: the model's own law with another number, on twins; full routers verify."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from tests.support.dynamic_plans import dynamic_plan
from tests.support.faults import Fault, faulty, module_tree
from tests.support.lossless import assert_lossless, generate_reference
from tests.support.tiny_models import build_model, prompt_ids, tiny_config, tiny_target
from torch import nn

from selfspec_runtime.drafts.fewer_experts import FewerExpertsSpec, routed_experts
from selfspec_runtime.engine import Engine
from selfspec_runtime.errors import PlanError
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.layer_skip import LayerSkipSet
from selfspec_runtime.plan import DraftPlan
from selfspec_runtime.sampling import SamplingSettings
from selfspec_runtime.target import Target

PROMPT = prompt_ids(16)
IDS = torch.tensor(PROMPT)
SETTINGS = GenerationSettings(max_new_tokens=40)
EXPERTS: dict[str, Any] = {"num_experts": 4, "moe_intermediate_size": 48}
FAMILIES: dict[str, dict[str, Any]] = {
    "mixtral": {},
    "qwen3_moe": {"norm_topk_prob": True},
    "olmoe": {"num_experts": 4, "norm_topk_prob": False},
    "qwen2_moe": {**EXPERTS, "shared_expert_intermediate_size": 32, "decoder_sparse_step": 1},
    "gpt_oss": {},
}


@cache
def moe(family: str, num_experts_per_tok: int = 3) -> Target:
    """A model of four layers that routes each token to so many of four experts."""
    options = {**FAMILIES[family], "num_experts_per_tok": num_experts_per_tok}
    return Target(build_model(tiny_config(family, **options)))


def draft_logits(target: Target, spec: FewerExpertsSpec) -> torch.Tensor:
    return target.logits(IDS, target.new_cache(), start=0, program=spec.build(target, {}).program)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_draft_is_the_model_with_another_number_in_its_configuration(family: str, count: int) -> None:
    """Renormalised as the model does, shared experts kept: the same weights under another configuration."""
    slim = moe(family, count)
    expected = slim.logits(IDS, slim.new_cache(), start=0)
    torch.testing.assert_close(draft_logits(moe(family), FewerExpertsSpec(num_experts=count)), expected)
    assert not torch.allclose(expected, moe(family).logits(IDS, moe(family).new_cache(), start=0), atol=1e-2)


def test_each_layer_may_have_its_own_number() -> None:
    target, spec = moe("mixtral"), FewerExpertsSpec(num_experts=(3, 1, 3, 2))
    program = spec.build(target, {}).program
    same = [own is module for own, module in zip(target.full.modules, program.modules, strict=True)]
    assert same == [True, False, True, False]
    counts = [routed_experts(target, module) for module in program.modules]
    assert counts == [3, 1, 3, 2]


def test_layers_without_routed_experts_are_passed_over() -> None:
    target = Target(build_model(tiny_config("qwen3_moe", mlp_only_layers=[0, 2])))
    program = FewerExpertsSpec(num_experts=1).build(target, {}).program
    assert [routed_experts(target, layer) for layer in target.full.modules] == [0, 2, 0, 2]
    assert program.modules[0] is target.full.modules[0]
    assert [routed_experts(target, layer) for layer in program.modules] == [0, 1, 0, 1]


def test_sub_layers_may_be_left_out_on_top() -> None:
    target = moe("olmoe")
    skip = LayerSkipSet(attention=frozenset({1}), mlp=frozenset({1, 2}))
    both = draft_logits(target, FewerExpertsSpec(num_experts=1, skip=skip))
    slim = moe("olmoe", 1)
    expected = slim.logits(IDS, slim.new_cache(), start=0, program=slim.programs.without(skip))
    torch.testing.assert_close(both, expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_output_is_generates_and_the_model_is_as_it_was(family: str) -> None:
    target = moe(family)
    config, tree = target.model.config.to_dict(), module_tree(target.model)
    engine = Engine(target, plan=dynamic_plan({"kind": "fewer_experts", "num_experts": 1}))
    generation = engine.generate(PROMPT, SETTINGS)
    assert_lossless(generation.token_ids, generate_reference(target.model, PROMPT, num_tokens=40))
    assert generation.stats.num_draft_tokens > 0
    assert target.model.config.to_dict() == config
    assert module_tree(target.model) == tree
    assert engine.extra_bytes == 0


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "olmoe"])
def test_sampled_texts_are_those_of_plain_decoding_with_shared_noise(family: str) -> None:
    """Three seeds, with a filter: what draft and target draw is compared token for token."""
    drafting = Engine(moe(family), plan=dynamic_plan({"kind": "fewer_experts", "num_experts": 2}))
    for seed in range(3):
        sampling = SamplingSettings(0.8, top_k=20, mode="match", seed=seed)
        settings = GenerationSettings(max_new_tokens=30, sampling=sampling)
        generation = drafting.generate(PROMPT, settings)
        assert generation.token_ids == Engine(moe(family)).generate(PROMPT, settings).token_ids
        assert generation.stats.num_accepted_tokens > 0


@pytest.mark.parametrize("stop", [9, 10, 11, 12])
def test_an_end_of_text_inside_a_block(stop: int) -> None:
    said = Engine(moe("olmoe")).generate(PROMPT, SETTINGS).token_ids
    engine = Engine(moe("olmoe"), plan=dynamic_plan({"kind": "fewer_experts", "num_experts": 2}))
    generation = engine.generate(PROMPT, GenerationSettings(max_new_tokens=40, eos_token_ids=(said[stop],)))
    assert generation.token_ids == said[: said.index(said[stop]) + 1]
    assert generation.finish_reason == "eos"


def test_an_exception_leaves_the_model_and_the_draft_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    target = moe("mixtral")
    engine = Engine(target, plan=dynamic_plan({"kind": "fewer_experts", "num_experts": 1}))
    expected, tree = engine.generate(PROMPT, SETTINGS), module_tree(target.model)
    kind = type(target.parts.layers[0].mlp.experts)
    for fail_at in (3, 10, 21):
        calls = iter(range(1000))

        def count(calls: Any = calls, fail_at: int = fail_at) -> None:
            if next(calls) == fail_at:
                raise Fault

        with monkeypatch.context() as patch:
            patch.setattr(kind, "forward", faulty(kind.forward, count))  # type: ignore[arg-type]
            with pytest.raises(Fault):
                engine.generate(PROMPT, SETTINGS)
        assert module_tree(target.model) == tree
    again = engine.generate(PROMPT, SETTINGS)
    assert (again.token_ids, again.stats) == (expected.token_ids, expected.stats)


@torch.no_grad()
def idle_experts(*, sharpness: float) -> Target:
    """The router is so sure of its first expert that the others count next to nothing; or not sure at all."""
    model = build_model(tiny_config("olmoe", num_experts=4, num_experts_per_tok=4, norm_topk_prob=True))
    for name, parameter in model.named_parameters():
        if name.endswith("gate.weight"):
            parameter.mul_(sharpness)
    return Target(model)


def expert_speedup(target: Target, count: int, *, attention_share: float = 0.2) -> float:
    """By counting experts: one of four is a quarter of an MLP; a block costs a pass for each."""
    have = routed_experts(target, target.full.modules[0])
    draft = attention_share + (1 - attention_share) * count / have
    plan = dynamic_plan({"kind": "fewer_experts", "num_experts": count}, num_draft_tokens=2)
    stats = Engine(target, plan=plan).generate(PROMPT, GenerationSettings(max_new_tokens=60)).stats
    return stats.num_emitted_tokens / (stats.num_rounds + draft * stats.num_draft_passes)


def test_it_wins_where_the_other_experts_count_for_nothing_and_loses_where_all_count() -> None:
    assert expert_speedup(idle_experts(sharpness=200.0), 1) > 1.3
    assert expert_speedup(idle_experts(sharpness=0.0), 1) < 0.9


@pytest.mark.parametrize(
    ("target", "given", "reason"),
    [
        ("llama", 1, "has no routed experts"),
        ("opt", 1, "has no routed experts"),
        ("phimoe", 1, "a router that selfspec does not know"),
        ("mixtral", 3, "the model has 3 for each token"),
        ("mixtral", 4, "the model has 3 for each token"),
        ("mixtral", (1, 1, 1, 4), "the model has 3 for each token"),
        ("mixtral", (1, 1), "the model has 4 layers"),
    ],
)
def test_what_the_model_has_not_is_refused(target: str, given: Any, reason: str) -> None:
    found = moe(target) if target in FAMILIES else _plain(target)
    with pytest.raises(PlanError, match=reason):
        Engine(found, plan=DraftPlan(source=FewerExpertsSpec(num_experts=given)))


def _plain(family: str) -> Target:
    if family == "phimoe":
        return Target(build_model(tiny_config(family, num_local_experts=4, num_experts_per_tok=2)))
    return tiny_target(family)


@pytest.mark.parametrize("given", [0, -1, None, "2", 1.5, [], [0, 1]])
def test_what_is_no_number_of_experts_is_refused(given: Any) -> None:
    if given == []:
        with pytest.raises(PlanError):
            FewerExpertsSpec(num_experts=()).validate_for(4)
        return
    with pytest.raises(ValidationError):
        FewerExpertsSpec.model_validate({"num_experts": given})


def test_a_plan_survives_a_file_and_describes_itself() -> None:
    for given, words in ((1, "1 expert"), (2, "2 experts"), ((1, 3, 2, 1), "1 to 3 experts")):
        plan = DraftPlan(source=FewerExpertsSpec(num_experts=given))
        assert DraftPlan.model_validate_json(plan.model_dump_json()) == plan
        assert plan.source is not None
        assert plan.source.describe() == words
    skip = LayerSkipSet(attention=frozenset({2}))
    assert FewerExpertsSpec(num_experts=2, skip=skip).describe() == "2 experts, skip A2"


def test_an_unknown_router_counts_as_none() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = nn.Module()
            self.mlp.experts = nn.Linear(2, 2)
            self.mlp.gate = nn.Identity()
            self.mlp.gate.top_k = 2  # type: ignore[assignment]

    assert routed_experts(tiny_target("llama"), Odd()) == 0
