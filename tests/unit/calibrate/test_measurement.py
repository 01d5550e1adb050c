from __future__ import annotations

import gc
from dataclasses import replace

import pytest
from tests.support.scripted import ScriptedEngine
from tests.support.tiny_models import prompt_ids, tiny_target

from selfspec_calibrate.measurement import EngineArm, MeasuredPrompt, collected_garbage, measure, warm_up
from selfspec_runtime.engine import Engine
from selfspec_runtime.errors import NumericalError
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.plan import DraftPlan

PROMPT = MeasuredPrompt("a", "code", (5, 6, 7))
SETTINGS = GenerationSettings(max_new_tokens=20)
NGRAM = DraftPlan.model_validate({"source": {"kind": "ngram"}})


def test_prefill_and_the_first_token_are_apart() -> None:
    run = measure(ScriptedEngine(token_s=0.1, num_tokens=11), PROMPT, SETTINGS, arm="plain")
    assert (run.arm, run.prompt_id, run.kind) == ("plain", "a", "code")
    assert run.num_tokens == 10
    assert len(run.token_ids) == 11
    assert run.decode_s == pytest.approx(1.0)
    assert run.time_to_first_token_s == 0.5


def test_a_generation_that_ends_at_once_has_no_tokens_to_time() -> None:
    run = measure(ScriptedEngine(num_tokens=1), PROMPT, SETTINGS, arm="plain")
    assert (run.num_tokens, run.decode_s) == (0, 0.0)


def test_what_choosing_took_is_told_of_one_generation_at_a_time() -> None:
    plan = DraftPlan.model_validate(
        {"source": {"kind": "clasp", "num_skipped": 1, "interval": 1, "max_overhead": 100.0}}
    )
    engine, prompt = Engine(tiny_target("llama"), plan=plan), MeasuredPrompt("a", "code", tuple(prompt_ids(12)))
    first, second = (measure(engine, prompt, SETTINGS, arm="plan") for _ in range(2))
    assert engine.source is not None
    assert second.choosing_s == engine.source.overhead.seconds
    assert 0.0 < first.choosing_s < first.decode_s
    assert second.choosing_s < second.decode_s
    assert measure(Engine(tiny_target("llama"), plan=NGRAM), PROMPT, SETTINGS, arm="plan").choosing_s == 0.0
    assert measure(Engine(tiny_target("llama")), PROMPT, SETTINGS, arm="plain").choosing_s == 0.0


def test_an_error_is_not_a_measurement() -> None:
    with pytest.raises(NumericalError):
        measure(ScriptedEngine(error=NumericalError("NaN")), PROMPT, SETTINGS, arm="plain")
    assert gc.isenabled()


def test_an_arm_measures_under_its_name() -> None:
    assert EngineArm("plan", ScriptedEngine()).measure(PROMPT, SETTINGS).arm == "plan"


def test_a_warm_up_is_short_and_changes_nothing_else() -> None:
    engine = ScriptedEngine()
    warm_up(engine, PROMPT, SETTINGS)
    assert engine.calls == [PROMPT.token_ids]
    assert engine.settings == [replace(SETTINGS, max_new_tokens=8)]
    warm_up(engine, PROMPT, GenerationSettings(max_new_tokens=3))
    assert engine.settings[-1].max_new_tokens == 3


def test_garbage_is_not_collected_while_something_is_timed() -> None:
    with collected_garbage():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with collected_garbage():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize("plan", [DraftPlan(), NGRAM], ids=["plain", "ngram"])
def test_both_arms_of_a_real_engine_count_tokens_alike(plan: DraftPlan) -> None:
    prompt = MeasuredPrompt("a", "chat", tuple(prompt_ids()))
    run = measure(Engine(tiny_target("llama"), None, plan), prompt, SETTINGS, arm="x")
    assert run.num_tokens == run.stats.num_emitted_tokens == 19
    assert 0 < run.seconds.decode == run.decode_s
    assert run.time_to_first_token_s == run.seconds.prefill > 0


def test_runs_of_one_engine_leave_no_trace_in_the_next() -> None:
    prompt = MeasuredPrompt("a", "chat", tuple(prompt_ids()))
    engine = Engine(tiny_target("llama"), None, NGRAM)
    fresh = measure(engine, prompt, SETTINGS, arm="x")
    measure(engine, MeasuredPrompt("b", "chat", tuple(prompt_ids(seed=1))), SETTINGS, arm="x")
    again = measure(engine, prompt, SETTINGS, arm="x")
    assert again.stats == fresh.stats
    assert again.token_ids == fresh.token_ids
