"""Replayed rounds say what rounds pass by pass say, with one read per round of fixed length."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from tests.support.plans import CONTROLLERS, SOURCES, exit_heads, plan_of
from tests.support.replay_engine import draft_plan, replay_engine
from tests.support.replay_recorder import torch_only  # noqa: F401
from tests.support.tiny_models import CONTEXT, planted, prompt_ids, tiny_model, tiny_target
from transformers import GenerationConfig

from selfspec_runtime.controllers.fixed import FixedController
from selfspec_runtime.engine import Engine
from selfspec_runtime.errors import NumericalError, UsageError
from selfspec_runtime.executors.choice import make_executor
from selfspec_runtime.executors.cuda_graph import DRAFTS_PER_READ
from selfspec_runtime.executors.eager import EagerExecutor
from selfspec_runtime.executors.recorder import NoRecorder
from selfspec_runtime.executors.recordings import extent_for
from selfspec_runtime.generation import Generation, GenerationSettings
from selfspec_runtime.plan import PLAIN, DraftPlan
from selfspec_runtime.sampling import SamplingSettings
from selfspec_runtime.target import Target

pytestmark = pytest.mark.usefixtures("torch_only")
PROMPT = prompt_ids(24)
NUM_TOKENS = 28
SETTINGS = GenerationSettings(max_new_tokens=NUM_TOKENS)
FAMILIES = ("qwen3", "mistral", "gemma3_text", "gpt2", "opt")
EXIT = {"kind": "early_exit", "exit_layer": 2}
SKIP = {"kind": "layer_skip", "skip": {"attention": [1], "mlp": [3]}}


@cache
def half_planted(family: str) -> Target:
    return Target(planted(tiny_model(family), exit_layer=2, scale=0.3))


def eager(target: Target, plan: DraftPlan = PLAIN, settings: GenerationSettings = SETTINGS) -> Generation:
    return Engine(target, plan=plan, arrays=exit_heads()).generate(PROMPT, settings)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_says_the_same(family: str) -> None:
    target, plan = half_planted(family), draft_plan(EXIT, 3)
    engine, executor = replay_engine(target, plan)
    assert engine.generate(PROMPT, SETTINGS).token_ids == eager(target, plan).token_ids
    assert executor.notice is None
    assert executor.num_host_reads > 0


@pytest.mark.parametrize("controller", CONTROLLERS)
@pytest.mark.parametrize("source", SOURCES)
def test_a_plan_says_the_same(source: str, controller: str) -> None:
    target, plan = half_planted("llama"), plan_of(source, controller)
    engine, executor = replay_engine(target, plan)
    expected, said = eager(target, plan), engine.generate(PROMPT, SETTINGS)
    assert said.token_ids == expected.token_ids
    assert executor.notice is None
    assert said.stats.num_accepted_tokens_per_pos == expected.stats.num_accepted_tokens_per_pos
    assert said.stats.num_draft_tokens == expected.stats.num_draft_tokens


@pytest.mark.parametrize("width", [1, 5, 15])
@pytest.mark.parametrize("source", [EXIT, SKIP], ids=["exit", "skip"])
def test_a_block_width_says_the_same(source: dict[str, object], width: int) -> None:
    target, plan = half_planted("llama"), draft_plan(source, width)
    engine, executor = replay_engine(target, plan)
    said = engine.generate(PROMPT, SETTINGS)
    assert said.token_ids == eager(target, plan).token_ids
    assert executor.num_host_reads == said.stats.num_rounds, "one copy to the host per round"


@pytest.mark.parametrize("mode", ["rejection", "match"])
@pytest.mark.parametrize("source", ["early_exit", "layer_skip", "ngram"])
def test_a_seed_says_the_same(source: str, mode: str) -> None:
    target, plan = half_planted("llama"), plan_of(source)
    sampling = SamplingSettings(temperature=1.0, top_k=50, top_p=0.95, seed=2**63 + 1, mode=mode)
    settings = GenerationSettings(max_new_tokens=NUM_TOKENS, sampling=sampling)
    said = replay_engine(target, plan)[0].generate(PROMPT, settings).token_ids
    # Where fewer tokens fit than are drafted, the last token is an accepted one instead of a bonus.
    assert said[:-1] == eager(target, plan, settings).token_ids[:-1]


def test_one_engine_serves_every_seed_and_text_with_the_same_recordings() -> None:
    target, plan = half_planted("llama"), plan_of("layer_skip")
    engine, executor = replay_engine(target, plan)
    texts = set()
    for seed in range(3):
        sampling = SamplingSettings(temperature=1.0, seed=seed, mode="match")
        settings = GenerationSettings(max_new_tokens=20, sampling=sampling)
        said = engine.generate(PROMPT, settings)
        assert said.token_ids == eager(target, plan, settings).token_ids
        texts.add(said.token_ids)
    assert len(texts) == 3
    assert executor.recordings.num_recorded == 1


def test_plain_decoding_is_one_recording_and_one_read_per_token() -> None:
    target = half_planted("llama")
    engine, executor = replay_engine(target)
    assert engine.generate(PROMPT, SETTINGS).token_ids == eager(target).token_ids
    assert executor.recordings.num_recorded == 1
    assert executor.num_host_reads == NUM_TOKENS - 1


def test_a_confidence_stop_reads_once_per_group_of_drafts() -> None:
    plan = plan_of("early_exit", "confidence")
    engine, executor = replay_engine(half_planted("llama"), plan)
    stats = engine.generate(PROMPT, SETTINGS).stats
    assert stats.num_draft_passes % DRAFTS_PER_READ == 0
    # A last round in which nothing fits drafts all the same, and what it drafts does not count.
    num_groups = executor.num_host_reads - stats.num_rounds
    assert num_groups - stats.num_draft_passes // DRAFTS_PER_READ in (0, 1)


def test_a_text_that_outgrows_its_extent_is_recorded_again() -> None:
    target, plan = half_planted("llama"), draft_plan(SKIP, 3)
    engine, executor = replay_engine(target, plan)
    prompt = prompt_ids(240)
    said = engine.generate(prompt, SETTINGS)
    assert said.token_ids == Engine(target, plan=plan).generate(prompt, SETTINGS).token_ids
    assert executor.recordings.num_recorded == 2


def test_extents_grow_by_a_third_to_a_half() -> None:
    extents = sorted({extent_for(needed, 5000) for needed in range(1, 6000)})
    assert extents == [256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 5000]
    assert all(extent_for(extent, 5000) == extent for extent in extents)


@pytest.mark.parametrize("num_tokens", [1, 2, 4])
@pytest.mark.parametrize("controller", CONTROLLERS)
def test_a_length_that_ends_inside_a_block(num_tokens: int, controller: str) -> None:
    target, plan = half_planted("llama"), plan_of("early_exit", controller)
    settings = GenerationSettings(max_new_tokens=num_tokens)
    engine, _ = replay_engine(target, plan)
    said, expected = engine.generate(PROMPT, settings), eager(target, plan, settings)
    assert said.token_ids == expected.token_ids
    assert said.stats.num_draft_tokens == expected.stats.num_draft_tokens


def test_the_context_fills_up() -> None:
    target, plan = half_planted("llama"), draft_plan(EXIT, 4)
    prompt = prompt_ids(CONTEXT - 11)
    settings = GenerationSettings(max_new_tokens=100)
    said = replay_engine(target, plan)[0].generate(prompt, settings)
    assert said.token_ids == Engine(target, plan=plan).generate(prompt, settings).token_ids
    assert said.finish_reason == "length"


def test_an_end_inside_a_block() -> None:
    target, plan = half_planted("llama"), draft_plan(EXIT, 5)
    said = eager(target, plan).token_ids
    engine, _ = replay_engine(target, plan)
    for position in range(5, 26, 6):
        settings = GenerationSettings(max_new_tokens=NUM_TOKENS, eos_token_ids=(said[position],))
        expected = said[: said.index(said[position]) + 1]
        assert engine.generate(PROMPT, settings).token_ids == expected


def test_history_dependent_processors_are_left_to_the_decoder() -> None:
    target, plan = half_planted("llama"), draft_plan(EXIT, 3)
    settings = GenerationSettings(max_new_tokens=20, processors=GenerationConfig(repetition_penalty=1.5))
    engine, executor = replay_engine(target, plan)
    assert engine.generate(PROMPT, settings).token_ids == eager(target, plan, settings).token_ids
    assert executor.num_host_reads == 0


def test_a_family_that_cannot_be_recorded_decodes_eagerly_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    target, plan = half_planted("llama"), draft_plan(EXIT, 3)
    kind = type(target.parts.layers[0].self_attn)
    original = kind.forward

    def reading(self: torch.nn.Module, hidden_states: torch.Tensor, *args: object, **kwargs: object) -> object:
        if self.layer_idx == 1 and executor.recordings._recorder._open is not None:
            message = "operation not permitted when stream is capturing\nmore"
            raise RuntimeError(message)
        return original(self, hidden_states, *args, **kwargs)

    engine, executor = replay_engine(target, plan)
    monkeypatch.setattr(kind, "forward", reading)
    assert engine.generate(PROMPT, SETTINGS).token_ids == eager(target, plan).token_ids
    assert executor.notice is not None
    assert executor.notice.count("\n") == 0
    assert "layer 1 (LlamaAttention)" in executor.notice
    assert "operation not permitted when stream is capturing" in executor.notice
    assert executor.num_host_reads == 0


def test_logits_that_are_no_numbers_are_an_error() -> None:
    target, plan = Target(planted(tiny_model("llama"), exit_layer=2)), draft_plan(EXIT, 3)
    engine, executor = replay_engine(target, plan)
    steps = engine.stream(PROMPT, SETTINGS)
    next(steps), next(steps)
    with torch.no_grad():
        target.model.lm_head.weight.fill_(float("nan"))
    with pytest.raises(NumericalError, match="not numbers"):
        next(steps)
    assert executor.notice is None


def test_the_steps_unrecorded_say_the_same() -> None:
    target, plan = half_planted("llama"), draft_plan(SKIP, 3)
    engine, executor = replay_engine(target, plan, recorder=NoRecorder())
    assert engine.generate(PROMPT, SETTINGS).token_ids == eager(target, plan).token_ids
    assert executor.notice is None


def test_auto_is_eager_away_from_cuda() -> None:
    target = tiny_target("llama")
    assert isinstance(make_executor("auto", target, None, FixedController(0), max_drafts=0), EagerExecutor)
    assert isinstance(Engine(target).decoder.executor, EagerExecutor)
    with pytest.raises(UsageError, match="needs a CUDA device"):
        Engine(target, executor="cuda_graph")
