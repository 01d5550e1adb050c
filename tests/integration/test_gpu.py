"""What only a CUDA device can show: captured rounds are the rounds themselves, bit for bit."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache

import pytest
import torch
from tests.support.attention_cases import TOLERANCES, make_case
from tests.support.device_steps import EXPERT_FAMILIES
from tests.support.plans import CONTROLLERS, SOURCES, exit_heads, plan_of
from tests.support.replay_engine import draft_plan, replay_engine
from tests.support.tiny_models import MAIN_FAMILIES, MORE_FAMILIES, planted, prompt_ids, tiny_model

from selfspec_runtime.engine import Engine
from selfspec_runtime.executors.cuda_graph import GraphExecutor
from selfspec_runtime.executors.recorder import CudaRecorder, NoRecorder
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.kernels.decode_attention import decode_attention
from selfspec_runtime.masks import causal_mask
from selfspec_runtime.sampling import SamplingSettings
from selfspec_runtime.target import Target

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
PROMPT = prompt_ids(24)
SETTINGS = GenerationSettings(max_new_tokens=60)
EXIT = {"kind": "early_exit", "exit_layer": 2}
FAMILIES = [family for family in (*MAIN_FAMILIES, *MORE_FAMILIES) if family != "mpt"]


@cache
def on_cuda(family: str) -> Target:
    model = copy.deepcopy(planted(tiny_model(family), exit_layer=2, scale=0.3)).to("cuda")
    if family in EXPERT_FAMILIES:
        model.set_experts_implementation("batched_mm")
    return Target(model)


@pytest.mark.parametrize("family", FAMILIES)
def test_replay_is_the_steps_bit_for_bit(family: str) -> None:
    target, plan = on_cuda(family), draft_plan(EXIT, 3)
    seen = []
    for recorder in (NoRecorder(), CudaRecorder(target.device)):
        engine, executor = replay_engine(target, plan, recorder=recorder)
        cache_ = target.new_cache(capacity=256)
        said = engine.generate(PROMPT, SETTINGS, cache=cache_)
        assert executor.notice is None
        layers = [torch.stack(cache_.layer(index)).clone() for index in range(target.num_layers)]
        seen.append((said.token_ids, executor.state.outcome.clone(), layers))
    assert seen[0][0] == seen[1][0]
    assert torch.equal(seen[0][1], seen[1][1])
    assert all(map(torch.equal, seen[0][2], seen[1][2]))


@pytest.mark.parametrize("controller", CONTROLLERS)
@pytest.mark.parametrize("source", SOURCES)
def test_a_plan_is_captured_and_says_what_plain_decoding_says(source: str, controller: str) -> None:
    target = on_cuda("llama")
    engine = Engine(target, plan=plan_of(source, controller), arrays=exit_heads())
    said = engine.generate(PROMPT, SETTINGS)
    assert said.token_ids == Engine(target, executor="eager").generate(PROMPT, SETTINGS).token_ids
    assert engine.decoder.executor.notice is None


@pytest.mark.parametrize("chosen", ["eager", "grouped_mm"])
@pytest.mark.parametrize("family", EXPERT_FAMILIES)
def test_experts_are_captured_however_they_were_loaded(family: str, chosen: str) -> None:
    model = copy.deepcopy(planted(tiny_model(family), exit_layer=2, scale=0.3)).to("cuda")
    model.set_experts_implementation(chosen)
    engine = Engine(Target(model), plan=draft_plan(EXIT, 3))
    engine.generate(PROMPT, SETTINGS)
    assert engine.decoder.executor.notice is None
    assert model.config._experts_implementation == chosen


def test_a_round_of_fixed_length_is_one_host_read() -> None:
    engine = Engine(on_cuda("llama"), plan=draft_plan(EXIT, 4))
    stats = engine.generate(PROMPT, SETTINGS).stats
    assert isinstance(engine.decoder.executor, GraphExecutor)
    assert engine.decoder.executor.num_host_reads == stats.num_rounds


@pytest.mark.parametrize("mode", ["rejection", "match"])
def test_a_seed_says_the_same_captured_and_not(mode: str) -> None:
    target, plan = on_cuda("llama"), draft_plan(EXIT, 3)
    settings = GenerationSettings(
        max_new_tokens=40,
        sampling=SamplingSettings(temperature=1.0, top_p=0.9, seed=5, mode=mode),  # type: ignore[arg-type]
    )
    said = [
        replay_engine(target, plan, recorder=recorder)[0].generate(PROMPT, settings).token_ids
        for recorder in (NoRecorder(), CudaRecorder(target.device))
    ]
    assert said[0] == said[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_attention_has_the_same_bits_for_any_number_of_rows_and_any_extent(dtype: torch.dtype) -> None:
    case = make_case(heads=(8, 2), rows=5, columns=300, dims=(128, 128), dtype=dtype, mask=None)
    query, key, value = (t.cuda() for t in (case.query, case.key, case.value))
    wide_key, wide_value = (torch.nn.functional.pad(t, (0, 0, 0, 84), value=torch.nan) for t in (key, value))
    seen = causal_mask(torch.arange(295, 300), torch.arange(384), None).cuda()
    together = decode_attention(query, wide_key, wide_value, seen, scaling=case.scaling)
    exact = replace(case, mask=seen[..., :300].cpu())
    assert exact.error(together.cpu()) < TOLERANCES[dtype]
    for row in range(5):
        live = 296 + row
        alone = decode_attention(
            query[:, :, row : row + 1],
            key[:, :, :live],
            value[:, :, :live],
            seen[:, :, row : row + 1, :live],
            scaling=case.scaling,
        )
        assert torch.equal(alone, together[:, row : row + 1])


def test_what_reads_on_the_host_is_noticed_and_decoded_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    target, plan = on_cuda("llama"), draft_plan(EXIT, 3)
    kind = type(target.parts.layers[0].mlp)
    original = kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, x: original(self, x) * (1.0 if float(x.sum()) < 1e30 else 0.0))
    engine = Engine(target, plan=plan)
    said = engine.generate(PROMPT, SETTINGS)
    notice = engine.decoder.executor.notice
    assert notice is not None
    assert "CUDA graphs are off" in notice
    assert said.token_ids == Engine(target, executor="eager").generate(PROMPT, SETTINGS).token_ids
