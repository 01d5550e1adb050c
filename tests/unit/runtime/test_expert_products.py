"""Experts run batched while a step is recorded, and as they were loaded otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tests.support.capture_guards import capture_guard
from tests.support.device_steps import STEPS, meta_world
from tests.support.replay_engine import draft_plan, replay_engine
from tests.support.replay_recorder import ReplayRecorder, torch_only  # noqa: F401
from tests.support.tiny_models import prompt_ids, tiny_model
from transformers import PreTrainedModel

from selfspec_runtime.engine import Engine
from selfspec_runtime.executors.expert_products import batched_experts
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.target import Target

SETTINGS = GenerationSettings(max_new_tokens=12)
PLAN = draft_plan({"kind": "early_exit", "exit_layer": 2}, 2)


def implementation(model: PreTrainedModel) -> Any:
    return model.config._experts_implementation


@contextmanager
def loaded_with(model: PreTrainedModel, chosen: str) -> Iterator[PreTrainedModel]:
    """A shared model with another choice, for a while."""
    before = implementation(model)
    model.set_experts_implementation(chosen)
    yield model
    model.set_experts_implementation(before)


class WatchfulRecorder(ReplayRecorder):
    """Notes how experts run when a recording begins."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.seen: list[Any] = []

    def begin(self) -> None:
        self.seen.append(implementation(self.model))
        super().begin()


@pytest.mark.usefixtures("torch_only")
@pytest.mark.parametrize("chosen", ["eager", "grouped_mm"])
@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_a_model_as_it_was_loaded_is_recorded_and_says_the_same(family: str, chosen: str) -> None:
    with loaded_with(tiny_model(family), chosen) as model:
        target, before = Target(model), model.config.to_dict()
        recorder = WatchfulRecorder(model)
        engine, executor = replay_engine(target, PLAN, recorder=recorder)
        said = engine.generate(prompt_ids(20), SETTINGS).token_ids
        assert executor.notice is None
        assert set(recorder.seen) == {"batched_mm"}
        assert implementation(model) == chosen
        assert model.config.to_dict() == before
        assert said == Engine(target).generate(prompt_ids(20), SETTINGS).token_ids


def test_without_it_such_a_step_could_not_be_recorded() -> None:
    world = meta_world("mixtral")
    steps, model = world.steps(), world.target.model
    for chosen in ("eager", "grouped_mm"):
        with loaded_with(model, chosen), torch.no_grad(), capture_guard("meta"):
            with pytest.raises((AssertionError, NotImplementedError, RuntimeError)):
                STEPS["plain"](steps)
            with batched_experts(model):
                STEPS["plain"](steps)


def test_a_failure_puts_it_back() -> None:
    with loaded_with(tiny_model("mixtral"), "eager") as model:
        with pytest.raises(KeyError), batched_experts(model):
            raise KeyError
        assert implementation(model) == "eager"


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_what_needs_no_change_is_left_alone(family: str) -> None:
    model = tiny_model(family)
    if family == "mixtral":
        with loaded_with(model, "batched_mm"), batched_experts(model):
            assert implementation(model) == "batched_mm"
        return
    before = model.config.to_dict(), implementation(model)
    with batched_experts(model):
        assert (model.config.to_dict(), implementation(model)) == before
