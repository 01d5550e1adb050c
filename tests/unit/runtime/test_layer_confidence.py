"""Confidences of layers, and the layers that they leave out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.faults import module_tree
from tests.support.tiny_models import prompt_ids, tiny_target

from selfspec_runtime.drafts.layer_confidence import (
    ConfidenceReader,
    confidence_of,
    local_margins,
    num_left_out,
    unsure_layers,
)

CURVES = st.lists(st.floats(0.0, 2.0), min_size=3, max_size=40).map(np.array)
TEXT = prompt_ids(30)


@given(CURVES, st.floats(0.01, 0.99))
def test_the_number_left_out_is_the_wanted_one_or_a_quarter_more(curve: np.ndarray, ratio: float) -> None:
    layers = unsure_layers(curve, skip_ratio=ratio)
    inner = len(curve) - 2
    fewest = num_left_out(len(curve), ratio)
    assert fewest <= len(layers) <= max(int((ratio + 0.25) * inner), fewest)
    assert list(layers) == sorted(set(layers))
    assert set(layers) <= set(range(1, len(curve) - 1))


@given(CURVES, st.floats(0.1, 10.0), st.floats(-5.0, 5.0))
def test_only_the_shape_of_the_curve_counts(curve: np.ndarray, factor: float, shift: float) -> None:
    if curve.std() < 1e-3:
        return
    np.testing.assert_allclose(local_margins(factor * curve + shift), local_margins(curve), rtol=1e-4, atol=1e-4)


def test_the_layers_that_dip_are_left_out() -> None:
    curve = np.ones(12) + 0.01 * np.sin(np.arange(12))
    curve[[3, 7]] -= 0.5
    assert {3, 7} <= set(unsure_layers(curve, skip_ratio=0.2))
    assert local_margins(curve)[3] < -1.0
    assert local_margins(curve)[7] < -1.0


def test_a_threshold_is_local() -> None:
    """A dip in a sure stretch is left out before a layer that is less sure, but not less than those around it."""
    curve = np.array([2.0, 2.0, 2.0, 1.5, 2.0, 2.0, 0.5, 0.5, 0.52, 0.5, 0.5, 0.5])
    assert 3 in unsure_layers(curve, skip_ratio=0.1)
    assert 8 not in unsure_layers(curve, skip_ratio=0.1)


def test_a_model_of_two_layers_has_nothing_to_leave_out() -> None:
    assert unsure_layers(np.array([0.1, 0.2]), skip_ratio=0.5) == ()


def test_confidence_is_one_less_the_relative_entropy() -> None:
    assert float(confidence_of(torch.zeros(1, 3, 64))) == pytest.approx(0.0, abs=1e-6)
    peaked = torch.zeros(1, 1, 64)
    peaked[..., 5] = 100.0
    assert float(confidence_of(peaked)) == pytest.approx(1.0)
    two = torch.full((1, 1, 64), -100.0)
    two[..., :2] = 0.0
    assert float(confidence_of(two)) == pytest.approx(1 - math.log(2) / math.log(64))
    assert float(confidence_of(torch.cat([peaked, two], dim=1))) == pytest.approx(1 - math.log(2) / math.log(64) / 2)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3_text", "gpt2", "gpt_neox", "opt", "mixtral"])
def test_confidences_are_those_of_the_text_as_it_was_decoded(family: str) -> None:
    """Each row sees what stood before it at its own position: the reading equals one of a plain pass over the text."""
    target = tiny_target(family)
    cache = target.new_cache()
    target.logits(torch.tensor(TEXT), cache, start=0)
    cache.length = len(TEXT)
    tree = module_tree(target.model)
    read = ConfidenceReader(target).read(torch.tensor(TEXT[18:]), cache, start=18)
    assert module_tree(target.model) == tree
    assert read == pytest.approx(plainly(family), abs=1e-5)
    assert read.std() > 0


def plainly(family: str) -> list[float]:
    """Confidences at the last rows of one pass over the whole text, by hooks."""
    target = tiny_target(family)
    found = [0.0] * target.num_layers

    def listening(index: int) -> object:
        def hear(_module: object, _inputs: object, output: object) -> None:
            states = output[0] if isinstance(output, tuple) else output
            found[index] += float(confidence_of(states[:, 18:]))

        return hear

    names = [name for name in (target.parts.attention_name, target.parts.mlp_name) if name]
    hooks = [
        getattr(layer, name).register_forward_hook(listening(index))
        for index, layer in enumerate(target.parts.layers)
        for name in names
    ]
    target.logits(torch.tensor(TEXT), target.new_cache(), start=0)
    for hook in hooks:
        hook.remove()
    return found
