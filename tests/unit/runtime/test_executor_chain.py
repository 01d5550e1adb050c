"""Layers that are recorded one by one give, replayed as a chain, the draft step of any skip set."""

from __future__ import annotations

import pytest
import torch
from tests.support.device_steps import CAPACITY, StepWorld, step_world
from tests.support.replay_engine import draft_plan, replay_engine
from tests.support.replay_recorder import ReplayRecorder, torch_only  # noqa: F401
from tests.support.tiny_models import planted, prompt_ids, tiny_model

from selfspec_runtime.drafts.passes import PassSource
from selfspec_runtime.engine import Engine
from selfspec_runtime.errors import PlanError
from selfspec_runtime.executors.chain import LayerChain, record_chain
from selfspec_runtime.executors.steps import DraftProgram
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.layer_skip import LayerSkipSet
from selfspec_runtime.plan import DraftPlan
from selfspec_runtime.target import Target

pytestmark = pytest.mark.usefixtures("torch_only")
SKIPS = [
    LayerSkipSet(),
    LayerSkipSet(attention=frozenset({1}), mlp=frozenset({3})),
    LayerSkipSet.whole([1, 2]),
    LayerSkipSet(attention=frozenset({0, 1, 2, 3})),
    LayerSkipSet(mlp=frozenset({0, 3})),
]


def chained(world: StepWorld, recorder: ReplayRecorder) -> LayerChain:
    world.write(20)
    with torch.no_grad():
        return record_chain(world.steps(), recorder)


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt2", "gpt_neox", "falcon", "mixtral"])
def test_a_chain_drafts_what_the_step_drafts(family: str) -> None:
    model = tiny_model(family)
    if family == "mixtral":
        model = planted(model, exit_layer=4)
        model.set_experts_implementation("batched_mm")
    world, recorder = step_world(model), ReplayRecorder()
    chain = chained(world, recorder)
    num_recorded = recorder.num_recordings
    for skip in SKIPS:
        world.write(33, seed=4)
        with torch.no_grad():
            world.steps().drafts(DraftProgram(world.target.programs.without(skip)), 2)
        expected = world.state.window.clone(), [t.clone() for t in world.cache.storage()[0]]
        world.write(33, seed=4)
        chain.replay(skip)
        chain.replay(skip)
        assert torch.equal(world.state.window, expected[0])
        assert all(map(torch.equal, world.cache.storage()[0], expected[1]))
    assert recorder.num_recordings == num_recorded, "a skip set that changes needs no new recording"


def test_recording_writes_nowhere_but_at_the_next_place() -> None:
    world = step_world(tiny_model("llama"))
    world.write(CAPACITY - 1)
    with torch.no_grad():
        record_chain(world.steps(extent=CAPACITY), ReplayRecorder())
    assert world.state.cursor.item() <= 1


def test_a_sub_layer_that_the_family_has_no_module_for_is_refused() -> None:
    world = step_world(tiny_model("opt"))
    chain = chained(world, ReplayRecorder())
    with torch.no_grad(), pytest.raises(PlanError, match="MLP"):
        chain.replay(LayerSkipSet(mlp=frozenset({1})))


def test_work_between_layers_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    world, recorder = step_world(tiny_model("llama")), ReplayRecorder()
    monkeypatch.setattr("selfspec_runtime.executors.chain._Piece.shaped", lambda _, hidden: hidden * 1.0)
    with pytest.raises(RuntimeError, match="between its layers"):
        chained(world, recorder)
    recorder.begin()
    recorder.end()


class Alternating(PassSource):
    """Leaves out something else in every round."""

    def __init__(self, target: Target) -> None:
        super().__init__(target, target.programs.full(), origin="layer_skip")
        self.skip = SKIPS[0]
        self.num_prepared = 0

    def prepare(self, context: object) -> None:
        del context
        self.num_prepared += 1
        self.skip = SKIPS[self.num_prepared % len(SKIPS)]


@pytest.mark.parametrize("controller", [{"kind": "fixed", "num_draft_tokens": 3}, {"kind": "confidence"}], ids=str)
def test_a_source_may_change_its_mind_every_round(controller: dict[str, object]) -> None:
    target = Target(planted(tiny_model("llama"), exit_layer=2, scale=0.3))
    plan = DraftPlan.model_validate(
        {"source": {"kind": "layer_skip", "skip": {"attention": [1], "mlp": []}}, "controller": controller}
    )
    engine, executor = replay_engine(target, plan)
    source = Alternating(target)
    engine.decoder.source = engine.source = executor.source = source
    settings = GenerationSettings(max_new_tokens=30)
    said = engine.generate(prompt_ids(24), settings)
    assert said.token_ids == Engine(target).generate(prompt_ids(24), settings).token_ids
    assert executor.notice is None
    assert source.num_prepared > 5
    assert said.stats.num_accepted_tokens > 0


def test_a_search_while_decoding_needs_no_new_recordings() -> None:
    target = Target(planted(tiny_model("llama"), exit_layer=2, scale=0.3))
    source = {"kind": "swift", "skip": {"attention": [1], "mlp": [2]}, "window": 8, "max_overhead": 5.0}
    plan = draft_plan(source, 3)
    engine, executor = replay_engine(target, plan)
    settings = GenerationSettings(max_new_tokens=40)
    said, expected = (
        engine.generate(prompt_ids(24), settings),
        Engine(target, plan=plan).generate(prompt_ids(24), settings),
    )
    assert said.token_ids == expected.token_ids
    assert said.stats.num_accepted_tokens == expected.stats.num_accepted_tokens
    assert engine.source.skip != LayerSkipSet.model_validate(source["skip"])  # type: ignore[union-attr]
    assert executor.recordings.num_recorded == 2, "the chain and the verification"
