"""A window in the configuration counts where the family's forward applies it, and only there."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from tests.support.tiny_models import FAMILIES, build_model, prompt_ids, tiny_config
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedModel

from selfspec_runtime import architecture
from selfspec_runtime.architecture import find_parts
from selfspec_runtime.attention_choice import attention_candidates
from selfspec_runtime.errors import UnsupportedModelError
from selfspec_runtime.layer_windows import layer_windows
from selfspec_runtime.packing import pack_model
from selfspec_runtime.target import Target

WINDOW = 8
KINDS = ["sliding_attention", "full_attention"] * 2
#: Read no window; three of them build a Llama under another name.
WINDOWLESS: dict[str, dict[str, Any]] = {
    **{family: {} for family in "exaone internlm3 iquestcoder gemma glm granite helium olmo olmo2 phi".split()},
    "stablelm": {"num_key_value_heads": 4},
    "gpt_neo": {
        "num_layers": 4,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 2]],
        "window_size": 16,
    },
    **{family: FAMILIES[family] for family in "llama gpt2 gpt_neox cohere opt falcon mpt".split()},
}
#: Read it for every layer.
SLIDING = {"mistral": {}, "mixtral": FAMILIES["mixtral"], "phi3": {}, "starcoder2": {}, "ministral3": {}}
#: Read it for the layers that their configuration calls sliding.
MIXED: dict[str, dict[str, Any]] = {
    **{family: {} for family in "cohere2 exaone4 ministral olmo3".split()},
    **{family: FAMILIES[family] for family in "gemma2 gemma3_text gpt_oss smollm3".split()},
}


def model_with(family: str, **values: Any) -> PreTrainedModel:
    config = tiny_config(family, **values)
    attention = attention_candidates(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], None)[0]
    return build_model(config, attention=attention)


def assert_sees_what_its_forward_sees(target: Target) -> None:
    """Prompt, block and single steps against one pass of the model's own forward, without a cache."""
    ids = torch.tensor(prompt_ids(40, seed=1))
    with torch.no_grad():
        wanted = target.model(input_ids=ids[None], use_cache=False).logits[0]
    cache = target.new_cache()
    bounds = [0, 25, 33, 36, 37, 38, 39, 40]
    pieces = [target.logits(ids[a:b], cache, start=a) for a, b in pairwise(bounds)]
    torch.testing.assert_close(torch.cat(pieces), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("stray", [{}, {"layer_types": KINDS}, {"use_sliding_window": False}])
@pytest.mark.parametrize("family", WINDOWLESS)
def test_a_window_that_the_family_does_not_read_is_no_window(family: str, stray: dict[str, Any]) -> None:
    target = Target(model_with(family, **{**WINDOWLESS[family], "sliding_window": WINDOW, **stray}))
    assert target.parts.windows == (None,) * 4
    assert target.parts.layer_kinds is None
    assert_sees_what_its_forward_sees(target)


@pytest.mark.parametrize("family", SLIDING)
def test_a_family_with_one_kind_of_layer_applies_the_window_to_all(family: str) -> None:
    target = Target(model_with(family, **{**SLIDING[family], "sliding_window": WINDOW, "layer_types": KINDS}))
    assert target.parts.windows == (WINDOW,) * 4
    assert target.parts.layer_kinds is None
    assert_sees_what_its_forward_sees(target)


@pytest.mark.parametrize("family", MIXED)
def test_a_family_with_two_kinds_applies_it_to_the_sliding_ones(family: str) -> None:
    extra = {"use_sliding_window": True} if family == "smollm3" else {}
    target = Target(model_with(family, **{**MIXED[family], "sliding_window": WINDOW, "layer_types": KINDS, **extra}))
    assert target.parts.windows == (WINDOW, None) * 2
    assert target.parts.layer_kinds == tuple(KINDS)
    assert_sees_what_its_forward_sees(target)


@pytest.mark.parametrize(
    ("options", "windows"),
    [
        ({"use_sliding_window": False}, (None,) * 4),
        ({"use_sliding_window": True, "max_window_layers": 3}, (None, None, None, WINDOW)),
        ({"use_sliding_window": True, "max_window_layers": 0}, (WINDOW,) * 4),
    ],
)
@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_qwen_slides_from_a_layer_on_where_it_is_switched_on(
    family: str, options: dict[str, Any], windows: tuple[int | None, ...]
) -> None:
    target = Target(model_with(family, sliding_window=WINDOW, **options))
    assert target.parts.windows == windows
    assert_sees_what_its_forward_sees(target)


@pytest.mark.parametrize("family", ["exaone", "mistral"])
def test_a_rebuilt_model_sees_as_far_as_the_one_it_was(family: str) -> None:
    model = model_with(family, sliding_window=WINDOW)
    windows = find_parts(model).windows
    pack_model(model)
    target = Target(model)
    assert target.parts.windows == windows
    assert_sees_what_its_forward_sees(target)


def test_a_window_beyond_the_context_hides_nothing() -> None:
    assert find_parts(model_with("mistral", sliding_window=10**9)).windows == (None,) * 4


def test_asking_changes_nothing_in_the_model() -> None:
    model = model_with("gemma3_text", **FAMILIES["gemma3_text"])
    layers, state = tuple(find_parts(model).layers), {name: each.clone() for name, each in model.state_dict().items()}
    assert layer_windows(find_parts(model), window=16) == (16, None) * 2
    assert tuple(find_parts(model).layers) == layers
    assert all(torch.equal(each, state[name]) for name, each in model.state_dict().items())


def test_a_layer_that_sees_something_else_than_the_last_positions_is_refused() -> None:
    model = model_with("mistral", sliding_window=0)  # hides every token from itself
    with pytest.raises(UnsupportedModelError, match=r"MistralForCausalLM .* last positions"):
        find_parts(model)


def test_layers_that_differ_otherwise_than_their_kinds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(architecture, "layer_windows", lambda _parts, *, window: (window, None, None, None))
    for kinds in ({}, {"layer_types": KINDS}):
        with pytest.raises(UnsupportedModelError, match=r"MistralForCausalLM .* do not say which"):
            find_parts(model_with("mistral", sliding_window=WINDOW, **kinds))
