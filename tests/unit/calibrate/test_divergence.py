from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tiny_models import prompt_ids, tiny_model, tiny_target
from transformers import GenerationConfig

from selfspec_calibrate.divergence import divergence_margin, first_divergence
from selfspec_runtime.engine import Engine
from selfspec_runtime.generation import GenerationSettings

SETTINGS = GenerationSettings(max_new_tokens=6)
texts = st.lists(st.integers(0, 2), max_size=8)


@given(texts, texts)
def test_the_first_divergence_ends_what_is_common(one: list[int], other: list[int]) -> None:
    place = first_divergence(one, other)
    if place is None:
        assert one == other
        return
    assert one[:place] == other[:place]
    assert one[place : place + 1] != other[place : place + 1]
    assert first_divergence(other, one) == place


def test_a_text_that_goes_on_diverges_where_the_other_ends() -> None:
    assert first_divergence((1, 2), (1, 2, 3)) == 2


def _logits(ids: list[int]) -> torch.Tensor:
    return tiny_model("llama")(torch.tensor([ids])).logits[0, -1]


def test_the_margin_is_that_of_the_models_own_logits() -> None:
    prompt = prompt_ids()
    common = Engine(tiny_target("llama")).generate(prompt, SETTINGS).token_ids[:3]
    top = _logits([*prompt, *common]).topk(2).values
    margin = divergence_margin(tiny_target("llama"), prompt, common, SETTINGS)
    assert margin == pytest.approx(float(top[0] - top[1]), abs=1e-4)
    assert margin > 0


def test_at_the_first_token_there_is_only_the_prompt() -> None:
    prompt = prompt_ids()
    top = _logits(prompt).topk(2).values
    assert divergence_margin(tiny_target("llama"), prompt, (), SETTINGS) == pytest.approx(
        float(top[0] - top[1]), abs=1e-4
    )


def test_penalties_count_as_they_do_in_decoding() -> None:
    """With the likeliest token banned, the margin is that of the second over the third."""
    prompt = prompt_ids()
    top = _logits(prompt).topk(3)
    banned = GenerationSettings(processors=GenerationConfig(suppress_tokens=[int(top.indices[0])]))
    margin = divergence_margin(tiny_target("llama"), prompt, (), banned)
    assert margin == pytest.approx(float(top.values[1] - top.values[2]), abs=1e-4)
