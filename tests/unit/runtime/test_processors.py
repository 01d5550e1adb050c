"""Processors: every row of a block gets the scores that ``generate`` would give it with its own past."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from selfspec_runtime.errors import UsageError
from selfspec_runtime.law import token_probs
from selfspec_runtime.processors import Processors, build_processors
from selfspec_runtime.sampling import SamplingSettings

VOCAB_SIZE = 24
EOS = [10, 11]  # the model says neither before it is made to
PROMPT = torch.tensor([[7, 3, 9, 3]])
NUM_NEW = 8

ATTRIBUTES: dict[str, dict[str, Any]] = {
    "sequence_bias": {"sequence_bias": {(3,): 2.0, (9, 3): -5.0, (1, 2): 4.0}},
    "sequence_bias_list": {"sequence_bias": [[[3], 2.0], [[9, 3], -5.0]]},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 1.7},
    "repetition_penalty": {"repetition_penalty": 1.7},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 1},
    "bad_words_ids": {"bad_words_ids": [[3], [7, 9], [10]]},
    "min_length": {"min_length": 8},
    "min_new_tokens": {"min_new_tokens": 3},
    "min_new_tokens_over_min_length": {"min_new_tokens": 3, "min_length": 30},
    "forced_bos_token_id": {"forced_bos_token_id": 4},
    "forced_eos_token_id": {"forced_eos_token_id": 10},
    "exponential_decay_length_penalty": {"exponential_decay_length_penalty": (2, 1.1)},
    "suppress_tokens": {"suppress_tokens": [1, 3]},
    "begin_suppress_tokens": {"begin_suppress_tokens": [1, 3]},
    "renormalize_logits": {"renormalize_logits": True},
    "everything": {
        "sequence_bias": {(3,): 2.0},
        "encoder_repetition_penalty": 1.2,
        "repetition_penalty": 1.3,
        "encoder_no_repeat_ngram_size": 2,
        "no_repeat_ngram_size": 3,
        "bad_words_ids": [[2], [7, 9]],
        "min_new_tokens": 3,
        "forced_eos_token_id": 10,
        "remove_invalid_values": True,
        "exponential_decay_length_penalty": (2, 1.1),
        "suppress_tokens": [1],
        "begin_suppress_tokens": [6],
        "renormalize_logits": True,
    },
}


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(2)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.5,
    )
    return LlamaForCausalLM(config).eval()


def _generate(model: LlamaForCausalLM, config: GenerationConfig, prompt: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the new tokens ``[n]``, the raw logits ``[n, V]`` and the processed scores ``[n, V]``."""
    torch.manual_seed(0)
    out = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        generation_config=copy.deepcopy(config),
        output_logits=True,
        output_scores=True,
        return_dict_in_generate=True,
    )
    return out.sequences[0, prompt.shape[1] :], torch.cat(out.logits), torch.cat(out.scores)


def _config(**attributes: Any) -> GenerationConfig:
    return GenerationConfig(max_new_tokens=NUM_NEW, eos_token_id=EOS, pad_token_id=0, **attributes)


def _build(config: GenerationConfig, prompt: Tensor = PROMPT) -> Processors:
    return build_processors(config, prompt_length=prompt.shape[1], eos_token_ids=EOS, device="cpu")


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_each_row_of_a_block_gets_the_scores_of_generate(model: LlamaForCausalLM, name: str) -> None:
    config = _config(**ATTRIBUTES[name])
    prompt = PROMPT[:, :1] if name == "forced_bos_token_id" else PROMPT
    tokens, logits, scores = _generate(model, config, prompt)
    assert tokens.shape[0] == NUM_NEW
    assert not torch.equal(scores, logits), "the attribute has no effect here, so nothing would be tested"
    processors = _build(config, prompt)
    assert not processors.is_empty
    assert torch.equal(processors(logits, prompt, tokens[:-1]), scores)
    # The same from the middle of the text on: blocks begin anywhere.
    committed = torch.cat([prompt, tokens[None, :2]], dim=1)
    assert torch.equal(processors(logits[2:], committed, tokens[2:-1]), scores[2:])


def test_a_model_in_half_precision_is_processed_in_float32(model: LlamaForCausalLM) -> None:
    processors = _build(_config(repetition_penalty=1.7))
    logits = torch.randn(2, VOCAB_SIZE, generator=torch.Generator().manual_seed(1)).bfloat16()
    processed = processors(logits, PROMPT, torch.tensor([4]))
    assert processed.dtype == torch.float32
    assert torch.equal(processed, processors(logits.float(), PROMPT, torch.tensor([4])))


@pytest.mark.parametrize(
    "attributes",
    [
        {"typical_p": 0.6},
        {"epsilon_cutoff": 0.06},
        {"eta_cutoff": 0.3},
        {"typical_p": 0.8, "eta_cutoff": 0.1, "renormalize_logits": True},
    ],
)
@pytest.mark.parametrize("filters", [{"top_k": 0}, {"top_k": 9, "top_p": 0.9}])
def test_further_warpers_act_on_the_law_as_in_generate(
    model: LlamaForCausalLM, attributes: dict[str, Any], filters: dict[str, Any]
) -> None:
    config = _config(do_sample=True, temperature=0.8, repetition_penalty=1.2, **attributes, **filters)
    tokens, logits, scores = _generate(model, config, PROMPT)
    processors = _build(config)
    asked = SamplingSettings(0.8, top_k=filters["top_k"] or None, top_p=filters.get("top_p"))
    processed = processors(logits, PROMPT, tokens[:-1])
    law = token_probs(processed, asked, warpers=processors.warpers)
    assert torch.allclose(law, scores.softmax(dim=-1), atol=1e-6)
    assert not torch.allclose(law, token_probs(processed, asked), atol=1e-3)


def test_invalid_values_are_removed_where_the_config_asks_for_it() -> None:
    logits = torch.zeros(2, VOCAB_SIZE)
    logits[0, 3], logits[1, 4] = float("nan"), float("inf")
    processed = _build(_config(remove_invalid_values=True))(logits, PROMPT, torch.tensor([1]))
    assert bool(processed.isfinite().all())
    assert processed.argmax(dim=-1)[1] == 4


def test_a_config_that_asks_for_nothing_changes_nothing() -> None:
    processors = _build(_config(repetition_penalty=1.0, no_repeat_ngram_size=0, typical_p=1.0, min_length=0))
    assert processors.is_empty
    logits = torch.randn(2, VOCAB_SIZE)
    assert processors(logits, PROMPT, torch.tensor([1])) is logits


def test_length_rules_without_an_end_token_are_left_out_as_in_generate() -> None:
    config = _config(min_length=8, min_new_tokens=3)
    assert build_processors(config, prompt_length=4, eos_token_ids=[], device="cpu").is_empty


@pytest.mark.parametrize("outside", [-1, VOCAB_SIZE, 10**6])
def test_a_drafted_id_outside_of_the_vocabulary_spoils_no_row_before_it(outside: int) -> None:
    processors = _build(_config(repetition_penalty=1.7, no_repeat_ngram_size=2, sequence_bias={(9, 3): 1.0}))
    logits = torch.randn(4, VOCAB_SIZE, generator=torch.Generator().manual_seed(1))
    processed = processors(logits, PROMPT, torch.tensor([4, outside, 6]))
    assert torch.equal(processed[:2], processors(logits[:2], PROMPT, torch.tensor([4])))
    assert processed.shape == (4, VOCAB_SIZE)


@pytest.mark.parametrize(
    "attributes",
    [
        {"guidance_scale": 1.5},
        {"watermarking_config": {"bias": 2.0}},
        {"top_h": 0.4},
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(attributes: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(attributes))):
        _build(_config(**attributes))


def test_what_applies_to_a_law_only_is_ignored_by_greedy_decoding_as_by_generate(model: LlamaForCausalLM) -> None:
    config = _config(top_h=0.4)
    processors = build_processors(config, prompt_length=4, eos_token_ids=EOS, device="cpu", greedy=True)
    assert processors.is_empty
    with_it, _, _ = _generate(model, config, PROMPT)
    assert torch.equal(with_it, _generate(model, _config(), PROMPT)[0])


@pytest.mark.parametrize("name", ["constraints", "force_words_ids"])
def test_constrained_beam_search_is_refused_by_name(name: str) -> None:
    config = _config()
    setattr(config, name, [[3]])
    with pytest.raises(UsageError, match=name):
        _build(config)


@pytest.mark.parametrize(
    ("attributes", "eos"),
    [
        ({"repetition_penalty": -1.0}, EOS),
        ({"encoder_repetition_penalty": -1.0}, EOS),
        ({"encoder_no_repeat_ngram_size": 2.5}, EOS),
        ({"bad_words_ids": [[-3]]}, EOS),
        ({"exponential_decay_length_penalty": (2, 1.5)}, []),
    ],
)
def test_arguments_that_transformers_refuses_are_usage_errors_by_name(
    attributes: dict[str, Any], eos: list[int]
) -> None:
    with pytest.raises(UsageError, match=next(iter(attributes))):
        build_processors(_config(**attributes), prompt_length=4, eos_token_ids=eos, device="cpu")


def test_a_forced_end_without_a_length_is_refused() -> None:
    config = GenerationConfig(forced_eos_token_id=10)
    with pytest.raises(UsageError, match="needs max_new_tokens or max_length"):
        build_processors(config, prompt_length=4, eos_token_ids=EOS, device="cpu")


def test_config_and_logits_are_only_read() -> None:
    config = _config(**ATTRIBUTES["everything"], typical_p=0.9)
    before = copy.deepcopy(config.to_dict())
    logits = torch.randn(3, VOCAB_SIZE)
    logits_before = logits.clone()
    block = torch.tensor([4, -1])
    _build(config)(logits, PROMPT, block)
    assert config.to_dict() == before
    assert torch.equal(logits, logits_before)
    assert block.tolist() == [4, -1]
