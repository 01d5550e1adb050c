"""What must hold on every transformers version that the package allows; CI runs it on the oldest and the newest."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.lossless import assert_lossless, generate_reference
from tests.support.plans import SOURCES, exit_heads, plan_of
from tests.support.saved_models import save_model
from tests.support.tiny_models import prompt_ids, tiny_model, tiny_target

from selfspec_runtime.engine import Engine
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.loading import load_model
from selfspec_runtime.model_spec import ModelSpec
from selfspec_runtime.probe import probe
from selfspec_runtime.target import Target

pytestmark = pytest.mark.smoke
NUM_TOKENS = 40


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
def test_greedy_text_is_the_one_of_generate(family: str, source: str) -> None:
    prompt = prompt_ids(20)
    reference = generate_reference(tiny_model(family), prompt, num_tokens=NUM_TOKENS)
    engine = Engine(tiny_target(family), None, plan_of(source), exit_heads())
    found = engine.generate(prompt, GenerationSettings(max_new_tokens=NUM_TOKENS))
    assert_lossless(found.token_ids, reference)


def test_a_saved_model_loads_is_packed_and_passes_its_probe(tmp_path: Path) -> None:
    loaded = load_model(ModelSpec(model=str(save_model(tmp_path)), device="cpu"))
    report = probe(Target(loaded.model), loaded.tokenizer)
    assert report.checks
    assert loaded.identity is not None
