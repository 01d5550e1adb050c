"""The parts of a decoder are found in every family, and what cannot be decoded losslessly is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from tests.support.tiny_models import FAMILIES, WINDOW, build_model, tiny_config, tiny_model
from torch import nn
from transformers import PreTrainedModel

from selfspec_runtime.architecture import find_parts
from selfspec_runtime.errors import UnsupportedModelError

WINDOWS: dict[str, tuple[int | None, ...]] = {
    "mistral": (WINDOW,) * 4,
    "starcoder2": (WINDOW,) * 4,
    "gemma3_text": (WINDOW, None, WINDOW, None),
    "gemma2": (WINDOW, None, WINDOW, None),
    "gpt_oss": (WINDOW, None, WINDOW, None),
}
ATTENTIONS = {"gpt2": "attn", "mpt": "attn", "gpt_neox": "attention", "falcon": "self_attention"}
WITHOUT_MLP = {"opt"}
#: Chooses among attentions of its own, so that only their names will do.
OWN_ATTENTIONS = {"falcon": "sdpa"}


def model_of(family: str) -> PreTrainedModel:
    return tiny_model(family, attention=OWN_ATTENTIONS.get(family, "selfspec"))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_part_is_found(family: str) -> None:
    model = model_of(family)
    parts = find_parts(model)
    assert parts.model is model
    assert parts.num_layers == 4
    assert any(child is parts.layers for child in parts.base.children())
    assert parts.head is model.get_output_embeddings()
    assert parts.head_path is not None
    assert model.get_submodule(parts.head_path) is parts.head
    assert parts.attention_name == ATTENTIONS.get(family, "self_attn")
    assert (parts.mlp_name is None) == (family in WITHOUT_MLP)
    for name in filter(None, (parts.attention_name, parts.mlp_name)):
        assert all(isinstance(getattr(layer, name), nn.Module) for layer in parts.layers)
    assert parts.windows == WINDOWS.get(family, (None,) * 4)
    assert parts.takes_logits_to_keep
    assert parts.attention_implementation == OWN_ATTENTIONS.get(family, "selfspec")


@pytest.mark.parametrize("family", FAMILIES)
def test_only_families_with_two_kinds_of_layers_take_a_mask_for_each(family: str) -> None:
    kinds = find_parts(model_of(family)).layer_kinds
    if family in ("gemma3_text", "gemma2", "gpt_oss"):
        assert kinds == ("sliding_attention", "full_attention") * 2
    else:
        assert kinds is None


def test_layers_of_one_kind_take_one_mask() -> None:
    sliding = find_parts(build_model(tiny_config("gemma3_text", layer_types=["sliding_attention"] * 4)))
    assert sliding.layer_kinds is None
    assert sliding.windows == (WINDOW,) * 4


def test_finding_parts_changes_nothing() -> None:
    model = tiny_model("llama")
    assert find_parts(model) == find_parts(model)


@pytest.mark.parametrize("kind", ["linear_attention", "chunked_attention"])
def test_layers_that_cannot_be_rolled_back_are_refused(kind: str) -> None:
    model = tiny_model("gemma3_text")
    config = SimpleNamespace(
        model_type="other",
        num_hidden_layers=4,
        sliding_window=None,
        layer_types=["full_attention", kind] * 2,
        _attn_implementation="sdpa",
    )
    stand_in = StandIn(config, model.model)
    with pytest.raises(UnsupportedModelError, match=rf"layer kinds \['{kind}'\] of other .* rolled back"):
        find_parts(stand_in)  # type: ignore[arg-type]


def test_a_model_without_a_list_of_decoder_layers_is_refused() -> None:
    config = SimpleNamespace(num_hidden_layers=4, _attn_implementation="sdpa")
    with pytest.raises(UnsupportedModelError, match="StandIn has no list of 4 decoder layers"):
        find_parts(StandIn(config, nn.ModuleList(nn.Linear(2, 2) for _ in range(4))))  # type: ignore[arg-type]
    config.num_hidden_layers = 5
    with pytest.raises(UnsupportedModelError, match="no list of 5 decoder layers"):
        find_parts(StandIn(config, tiny_model("llama").model))  # type: ignore[arg-type]


def test_an_attention_that_takes_no_mask_is_refused() -> None:
    config = SimpleNamespace(num_hidden_layers=4, _attn_implementation="flash_attention_2")
    with pytest.raises(UnsupportedModelError, match=r"'flash_attention_2', which takes no explicit mask.*sdpa"):
        find_parts(StandIn(config, tiny_model("llama").model))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("family", "options", "reason"),
    [
        ("bloom", {"n_layer": 4, "n_head": 4}, "ALiBi"),
        ("falcon", {"alibi": True, "head_dim": None}, "ALiBi"),
        ("doge", {}, "drafted tokens would change earlier ones"),
    ],
)
def test_attentions_that_compute_a_block_otherwise_than_single_steps_are_refused(
    family: str, options: dict[str, Any], reason: str
) -> None:
    model = build_model(tiny_config(family, **options), attention="eager")
    with pytest.raises(UnsupportedModelError, match=reason):
        find_parts(model)


class StandIn(nn.Module):
    """Looks like a causal language model to whoever looks for its parts."""

    _no_split_modules: ClassVar[list[str]] = []

    def __init__(self, config: Any, base: nn.Module) -> None:
        super().__init__()
        self.config, self.base_model = config, base

    def get_output_embeddings(self) -> None:
        return None

    def forward(self, input_ids: Any) -> None:
        del input_ids
