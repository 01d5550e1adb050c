"""Caches come and go; the storage that recorded steps work on stays, and nobody's text is lost."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from tests.support.replay_engine import draft_plan, replay_engine
from tests.support.replay_recorder import torch_only  # noqa: F401
from tests.support.tiny_models import planted, prompt_ids, tiny_model

from selfspec_runtime.engine import Engine
from selfspec_runtime.executors.arena import ARENA_STEP
from selfspec_runtime.executors.recorder import NoRecorder
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.target import Target

PLAN = draft_plan({"kind": "early_exit", "exit_layer": 2}, 3)
SETTINGS = GenerationSettings(max_new_tokens=16)


def new_target() -> Target:
    return Target(planted(tiny_model("llama"), exit_layer=2, scale=0.3))


def test_texts_one_after_another_use_the_same_storage() -> None:
    target = new_target()
    engine, executor = replay_engine(target, PLAN, recorder=NoRecorder())
    expected = Engine(target, plan=PLAN).generate(prompt_ids(24), SETTINGS).token_ids
    for _ in range(3):
        assert engine.generate(prompt_ids(24), SETTINGS).token_ids == expected
    assert target.arena.version == 1
    assert executor.recordings.num_recorded == 1


def test_texts_that_take_turns_keep_their_contents() -> None:
    target = new_target()
    plain = Engine(target, plan=PLAN)
    prompts = [prompt_ids(24, seed=seed) for seed in range(3)]
    expected = [plain.generate(prompt, SETTINGS).token_ids for prompt in prompts]
    engines = [replay_engine(target, PLAN, recorder=NoRecorder())[0] for _ in prompts]
    streams = [engine.stream(prompt, SETTINGS) for engine, prompt in zip(engines, prompts, strict=True)]
    said: list[list[int]] = [[] for _ in prompts]
    for _ in range(SETTINGS.max_new_tokens):
        for stream, tokens in zip(streams, said, strict=True):
            step = next(stream, None)
            tokens.extend(step.token_ids if step is not None else ())
    assert [tuple(tokens) for tokens in said] == expected


def test_a_cache_that_is_kept_from_turn_to_turn_moves_in_with_its_contents() -> None:
    target = new_target()
    cache = target.new_cache(capacity=64)
    first = Engine(target, plan=PLAN).generate(prompt_ids(24), SETTINGS, cache=cache).token_ids
    turn = [*prompt_ids(24), *first, *prompt_ids(5, seed=8)]
    expected = Engine(target, plan=PLAN).generate(turn, SETTINGS).token_ids
    other, _ = replay_engine(target, PLAN, recorder=NoRecorder())
    other.generate(prompt_ids(30, seed=2), SETTINGS)
    engine, _ = replay_engine(target, PLAN, recorder=NoRecorder())
    assert engine.generate(turn, SETTINGS, cache=cache).token_ids == expected
    assert cache.is_stored_in(target.arena.keys)


def test_a_longer_text_replaces_the_storage_and_what_was_recorded() -> None:
    target = Target(planted(tiny_model("llama"), exit_layer=2, scale=0.3))
    target.__dict__["max_positions"] = None
    engine, executor = replay_engine(target, PLAN, recorder=NoRecorder())
    engine.generate(prompt_ids(24), SETTINGS)
    assert target.arena.capacity == ARENA_STEP
    engine.generate(prompt_ids(24), GenerationSettings(max_new_tokens=ARENA_STEP, eos_token_ids=tuple(range(128))))
    assert target.arena.capacity == ARENA_STEP
    cache = target.new_cache(capacity=2 * ARENA_STEP)
    engine.generate(prompt_ids(24), SETTINGS, cache=cache)
    assert target.arena.capacity == 3 * ARENA_STEP
    assert target.arena.version == 2
    assert executor.recordings.num_recorded == 2


@pytest.mark.usefixtures("torch_only")
def test_a_weight_that_lies_elsewhere_is_recorded_anew() -> None:
    target = Target(planted(copy.deepcopy(tiny_model("llama")), exit_layer=2, scale=0.3))
    engine, executor = replay_engine(target, PLAN)
    first = engine.generate(prompt_ids(24), SETTINGS).token_ids
    count = executor.recordings.num_recorded
    assert engine.generate(prompt_ids(24), SETTINGS).token_ids == first
    assert executor.recordings.num_recorded == count
    head = target.model.lm_head
    head.weight = torch.nn.Parameter(-head.weight.detach(), requires_grad=False)
    changed = engine.generate(prompt_ids(24), SETTINGS).token_ids
    assert executor.recordings.num_recorded == 2 * count
    assert changed == Engine(target, plan=PLAN).generate(prompt_ids(24), SETTINGS).token_ids != first


def test_a_new_text_finds_no_traces_of_a_broken_one() -> None:
    target = new_target()
    engine, _ = replay_engine(target, PLAN, recorder=NoRecorder())
    expected = engine.generate(prompt_ids(24), SETTINGS).token_ids
    gc.collect()
    for held in (*target.arena.keys, *target.arena.values):
        held.fill_(float("nan"))
    assert engine.generate(prompt_ids(24), SETTINGS).token_ids == expected
    assert not any(bool(held.isnan().any()) for held in target.arena.keys)
    assert torch.isfinite(target.arena.values[0]).all()
