from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.scripted import ScriptedEngine, scripted_prompts
from tests.support.workspaces import fast_workspace_in

from selfspec_calibrate.block_store import BlockStore
from selfspec_calibrate.measurement import EngineArm
from selfspec_runtime.errors import NumericalError
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.sampling import SamplingSettings

SETTINGS = GenerationSettings(max_new_tokens=20)
PROMPT, OTHER = scripted_prompts(2)


def test_a_stored_block_is_the_measured_one(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    arms, middle = [EngineArm("plain", engine), EngineArm("plan", engine)], [EngineArm("stock", engine)]
    with fast_workspace_in(tmp_path) as workspace:
        measured = BlockStore(workspace).block(arms, PROMPT, SETTINGS, middle=middle)
        assert len(engine.calls) == 5
        assert BlockStore(workspace).block(arms, PROMPT, SETTINGS, middle=middle) == measured
    assert len(engine.calls) == 5


def test_any_other_block_is_measured(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    arms = [EngineArm("plain", engine), EngineArm("plan", engine)]
    sampled = GenerationSettings(max_new_tokens=20, sampling=SamplingSettings(temperature=0.7))
    with fast_workspace_in(tmp_path) as workspace:
        store = BlockStore(workspace)
        blocks = [
            store.block(arms, PROMPT, SETTINGS),
            store.block(arms, OTHER, SETTINGS),
            store.block(arms, PROMPT, sampled),
            store.block(arms, PROMPT, GenerationSettings(max_new_tokens=10)),
            store.block(arms[:1], PROMPT, SETTINGS),
            store.block(arms, PROMPT, SETTINGS, repeats=2),
            store.block(arms[:1], PROMPT, SETTINGS, middle=arms[1:]),
            BlockStore(workspace, "other.json").block(arms, PROMPT, SETTINGS),
        ]
    assert len(engine.calls) == 4 * 4 + 2 + 8 + 3 + 4
    assert len(blocks) == 8


def test_a_failed_block_is_tried_again(tmp_path: Path) -> None:
    engine = ScriptedEngine(error=NumericalError("NaN"))
    arms = [EngineArm("plain", ScriptedEngine()), EngineArm("plan", engine)]
    with fast_workspace_in(tmp_path) as workspace:
        for _ in range(2):
            assert "plan" in BlockStore(workspace).block(arms, PROMPT, SETTINGS).failures
    assert len(engine.calls) == 2


def test_without_a_workspace_nothing_is_kept() -> None:
    engine = ScriptedEngine()
    for _ in range(2):
        block = BlockStore().block([EngineArm("plain", engine)], PROMPT, SETTINGS)
    assert len(engine.calls) == 4
    assert block.runs["plain"][0].decode_s == pytest.approx(10.0)
