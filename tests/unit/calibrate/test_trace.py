from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from tests.support.tiny_models import prompt_ids, tiny_target

from selfspec_calibrate.trace import Trace, load_traces, record_trace, save_traces
from selfspec_runtime.engine import Engine
from selfspec_runtime.errors import CalibrationFileError, UsageError
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.plan import DraftPlan

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)
TRACES = st.lists(st.builds(Trace, st.text(max_size=9), st.text(max_size=9), IDS, IDS), max_size=4)


@given(traces=TRACES)
def test_traces_come_back_as_they_were_saved(traces: list[Trace], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("traces") / "traces.safetensors"
    save_traces(path, traces)
    assert load_traces(path) == traces
    assert [other.name for other in path.parent.iterdir()] == [path.name]


def test_saving_again_replaces_the_file(tmp_path: Path) -> None:
    path = tmp_path / "traces.safetensors"
    save_traces(path, [Trace("a", "k", (1,), (2, 3))])
    save_traces(path, [Trace("b", "k", (1,), (2, 3))])
    assert [trace.prompt_id for trace in load_traces(path)] == ["b"]


def test_what_is_no_trace_file_is_refused_by_name(tmp_path: Path) -> None:
    broken, other = tmp_path / "broken.safetensors", tmp_path / "other.safetensors"
    broken.write_bytes(b"nothing of the kind")
    save_file({"0.prompt": torch.zeros(1)}, other)
    for path in (broken, other, tmp_path / "missing.safetensors"):
        with pytest.raises(CalibrationFileError, match=f"{path.name} holds no traces"):
            load_traces(path)


def test_a_trace_holds_plain_decoding_and_its_first_token() -> None:
    target, prompt = tiny_target("llama"), prompt_ids(9)
    settings = GenerationSettings(max_new_tokens=7)
    trace = record_trace(Engine(target), "p", "chat", prompt, settings)
    logits = target.logits(torch.tensor(trace.input_ids), target.new_cache(), start=0)
    assert trace.output_ids == tuple(logits[len(prompt) - 1 :].argmax(dim=1).tolist())
    assert (trace.prompt_ids, trace.num_scored, len(trace.input_ids)) == (tuple(prompt), 6, 15)
    plan = DraftPlan.model_validate({"source": {"kind": "layer_skip", "skip": {"mlp": [1]}}})
    assert record_trace(Engine(target, plan=plan), "p", "chat", prompt, settings) == trace


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(UsageError, match="prompt is empty"):
        record_trace(Engine(tiny_target("llama")), "p", "chat", [], GenerationSettings())


def test_a_trace_of_one_token_starts_no_round() -> None:
    trace = Trace("p", "k", (4, 5), (6,))
    assert (trace.num_scored, trace.input_ids) == (0, (4, 5))
    assert Trace("p", "k", (4, 5), ()).num_scored == 0
