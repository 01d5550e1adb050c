from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiny_models import build_model, tiny_config, tiny_model
from tests.support.tiny_tokenizer import tiny_tokenizer
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedConfig

from selfspec_runtime.generation_defaults import context_tokens, resolve_generation_defaults
from selfspec_runtime.law import token_probs

if TYPE_CHECKING:
    from pathlib import Path


def model_with(config: PreTrainedConfig | None = None, **generation: Any) -> Any:
    """What the resolver reads of a model."""
    return SimpleNamespace(
        config=config or tiny_config("llama"), generation_config=GenerationConfig(**{"eos_token_id": 2, **generation})
    )


def test_a_plain_config_is_greedy() -> None:
    defaults = resolve_generation_defaults(model_with(pad_token_id=0))
    assert defaults.sampling.greedy
    assert defaults.eos_token_ids == (2,)
    assert defaults.pad_token_id == 0
    assert defaults.context_tokens == 512
    assert defaults.notices == ()


def test_all_end_tokens_count() -> None:
    assert resolve_generation_defaults(model_with(eos_token_id=[5, 2, 5])).eos_token_ids == (5, 2)


@pytest.mark.parametrize("kept", [True, False])
def test_end_tokens_are_those_of_generate_with_and_without_a_generation_config_file(
    tmp_path: Path, *, kept: bool
) -> None:
    model = build_model(tiny_config("llama", num_hidden_layers=1, eos_token_id=7))
    assert model.generation_config.eos_token_id is None
    model.save_pretrained(tmp_path)
    if not kept:
        (tmp_path / "generation_config.json").unlink()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    read, _ = loaded._prepare_generation_config(None)
    defaults = resolve_generation_defaults(loaded, tiny_tokenizer())
    assert defaults.eos_token_ids == (() if read.eos_token_id is None else (read.eos_token_id,))
    assert defaults.eos_token_ids == (() if kept else (7,))
    assert defaults.notices
    assert ("names an end token (7), but its generation config names none" in defaults.notices[0]) == kept


def test_end_tokens_that_the_model_does_not_name_are_the_tokenizers() -> None:
    config = tiny_config("llama", eos_token_id=None)
    defaults = resolve_generation_defaults(model_with(config, eos_token_id=None), tiny_tokenizer())
    assert defaults.eos_token_ids == (2,)
    assert "tokenizer's is used" in defaults.notices[0]
    assert "no end token" in resolve_generation_defaults(model_with(config, eos_token_id=None)).notices[0]


def test_another_end_token_of_the_tokenizer_is_told_and_not_added() -> None:
    defaults = resolve_generation_defaults(model_with(eos_token_id=[9]), tiny_tokenizer())
    assert defaults.eos_token_ids == (9,)
    assert "id 2" in defaults.notices[0]


def test_stop_strings_and_length_are_honoured() -> None:
    defaults = resolve_generation_defaults(model_with(stop_strings="END", max_new_tokens=33))
    assert (defaults.stop_strings, defaults.max_new_tokens) == (("END",), 33)
    assert resolve_generation_defaults(model_with(stop_strings=["a", "b"])).stop_strings == ("a", "b")


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({"do_sample": False, "temperature": 0.6, "top_p": 0.9}, (0.0, None, None, None)),
        ({"do_sample": True}, (1.0, 50, None, None)),
        ({"do_sample": True, "top_k": 0}, (1.0, None, None, None)),
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20}, (0.6, 20, 0.95, None)),
        ({"do_sample": True, "top_p": 1.0, "min_p": 0.05}, (1.0, 50, None, 0.05)),
        ({"do_sample": True, "min_p": 0.0}, (1.0, 50, None, None)),
        ({"do_sample": True, "temperature": 0.0}, (0.0, None, None, None)),
    ],
)
def test_the_sampling_law_is_the_configs(generation: dict[str, Any], expected: tuple[Any, ...]) -> None:
    sampling = resolve_generation_defaults(model_with(**generation)).sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == expected


@settings(max_examples=25, deadline=None)
@given(
    temperature=st.sampled_from([None, 0.3, 1.0, 1.7]),
    top_k=st.sampled_from([None, 0, 1, 5, 200]),
    top_p=st.sampled_from([None, 0.2, 0.9, 1.0]),
    min_p=st.sampled_from([None, 0.0, 0.1]),
)
def test_generate_would_draw_from_the_same_law(
    temperature: float | None, top_k: int | None, top_p: float | None, min_p: float | None
) -> None:
    model = tiny_model("llama")
    asked = GenerationConfig(do_sample=True, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    prepared, _ = model._prepare_generation_config(copy.deepcopy(asked))
    prepared._eos_token_tensor = None
    logits = 3 * torch.randn(1, 128, generator=torch.Generator().manual_seed(0))
    scores = model._get_logits_processor(prepared, input_ids_seq_length=1)(torch.ones(1, 1, dtype=torch.long), logits)
    ours = resolve_generation_defaults(SimpleNamespace(config=model.config, generation_config=asked)).sampling
    torch.testing.assert_close(token_probs(logits, ours), scores.softmax(dim=-1), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("generation", "word"),
    [
        ({"num_beams": 4}, "num_beams=4"),
        ({"num_return_sequences": 3, "do_sample": True}, "num_return_sequences=3"),
        ({"use_cache": False}, "use_cache=False"),
        ({"cache_implementation": "static"}, "cache_implementation=static"),
        ({"penalty_alpha": 0.6}, "penalty_alpha=0.6"),
        ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens=3"),
        ({"guidance_scale": 1.5}, "guidance_scale=1.5"),
        ({"do_sample": True, "temperature": 0.0}, "temperature 0.0"),
    ],
)
def test_each_override_is_one_line(generation: dict[str, Any], word: str) -> None:
    notices = resolve_generation_defaults(model_with(**generation)).notices
    assert len(notices) == 1
    assert word in notices[0]


@pytest.mark.parametrize(
    "generation",
    [{"num_beams": 1}, {"use_cache": True}, {"cache_implementation": "hybrid"}, {"guidance_scale": 1.0}],
)
def test_harmless_settings_are_not_mentioned(generation: dict[str, Any]) -> None:
    assert resolve_generation_defaults(model_with(**generation)).notices == ()


def test_use_cache_left_in_the_model_config_is_mentioned_once() -> None:
    config = tiny_config("llama", use_cache=False)
    assert len(resolve_generation_defaults(model_with(config)).notices) == 1
    assert len(resolve_generation_defaults(model_with(config, use_cache=False)).notices) == 1


def test_nothing_is_changed_in_the_model() -> None:
    model = build_model(tiny_config("llama", num_hidden_layers=1, use_cache=False))
    model.generation_config = GenerationConfig(do_sample=True, num_beams=4, eos_token_id=[3, 2], top_k=None)
    before = model.generation_config.to_dict(), model.config.to_dict()
    resolve_generation_defaults(model, tiny_tokenizer())
    assert (model.generation_config.to_dict(), model.config.to_dict()) == before


@pytest.mark.parametrize(
    ("family", "overrides", "expected"),
    [
        ("llama", {"max_position_embeddings": 77}, 77),
        ("gpt2", {"n_positions": 55}, 55),
        ("opt", {"max_position_embeddings": 99}, 99),
        ("bloom", {}, None),
        ("mpt", {"max_seq_len": 44}, 44),
    ],
)
def test_the_context_is_found_under_its_many_names(
    family: str, overrides: dict[str, Any], expected: int | None
) -> None:
    from transformers import AutoConfig

    assert context_tokens(AutoConfig.for_model(family, **overrides)) == expected


STILL = {"rope_type": "default", "rope_theta": 1e4}


def rotary(kind: str, original: int) -> dict[str, Any]:
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": original}
    return rope | ({"short_factor": [1.0] * 8, "long_factor": [2.0] * 8} if kind == "longrope" else {})


@pytest.mark.parametrize(
    ("family", "rope"),
    [
        ("llama", rotary("longrope", 128)),
        ("gemma3_text", {"full_attention": rotary("longrope", 128), "sliding_attention": STILL}),
        ("olmo3", {"full_attention": rotary("longrope", 256), "sliding_attention": rotary("longrope", 128)}),
    ],
)
def test_rotary_tables_that_change_hold_the_context_to_their_first_regime(family: str, rope: dict[str, Any]) -> None:
    defaults = resolve_generation_defaults(model_with(tiny_config(family, rope_parameters=rope)))
    assert defaults.context_tokens == 128
    assert "held to 128 of 512 tokens" in defaults.notices[0]


@pytest.mark.parametrize("kind", ["yarn", "dynamic"])
def test_rotary_tables_that_stay_keep_the_whole_context(kind: str) -> None:
    nested = {"full_attention": rotary(kind, 128), "sliding_attention": STILL}
    configs = tiny_config("llama", rope_parameters=rotary(kind, 128)), tiny_config("olmo3", rope_parameters=nested)
    assert [context_tokens(config) for config in configs] == [512, 512]


@pytest.mark.parametrize("nested", [True, False])
def test_dynamic_tables_do_not_change_within_the_context(*, nested: bool) -> None:
    rope = rotary("dynamic", 16)
    family, values = ("olmo3", {"full_attention": rope, "sliding_attention": STILL}) if nested else ("llama", rope)
    model = build_model(tiny_config(family, rope_parameters=values, max_position_embeddings=64))
    table = model.model.rotary_emb
    before = {name: each.clone() for name, each in table.named_buffers()}
    with torch.no_grad():
        model(torch.arange(64)[None])
    assert all(torch.equal(each, before[name]) for name, each in table.named_buffers())
