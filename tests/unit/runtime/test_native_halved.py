"""Float32 layers on bfloat16 weights: the float32 product, from half the memory."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tiny_models import build_model, prompt_ids, tiny_config
from torch import Tensor, nn
from torch.nn import functional

from selfspec_runtime.engine import Engine
from selfspec_runtime.fast_linear import dense_weight, fast_linear, fused
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.memory import weight_bytes
from selfspec_runtime.native.halved import HalvedLinear, can_be_halved
from selfspec_runtime.native.library import MAX_ROWS, native_status
from selfspec_runtime.native.linear import NativeLinear
from selfspec_runtime.packing import pack_model
from selfspec_runtime.target import Target
from selfspec_runtime.weight_arena import WeightArena

pytestmark = pytest.mark.skipif(native_status().kernels is None, reason=native_status().reason or "kernels at hand")

# Matrix units, matrix units with an odd number of steps, pairs of vectors with a rest, and less than a vector.
SHAPES = ((64, 96), (96, 576), (50, 80), (7, 33), (3, 5))
ROWS = (1, 2, 5, 6, 11, 16, MAX_ROWS, MAX_ROWS + 1)


def weights(rows: int, width: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)).bfloat16()


def inputs(rows: int, width: int) -> Tensor:
    """Rows whose values lie seven orders of magnitude apart."""
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(1)) * torch.logspace(-4, 3, width)


def error(found: Tensor, x: Tensor, weight: Tensor) -> float:
    """The largest error, relative to the sum of the terms' sizes."""
    exact, size = x.double() @ weight.double().T, x.double().abs() @ weight.double().abs().T
    return ((found.double() - exact).abs() / size).max().item()


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_as_near_to_the_exact_product_as_torch_is(shape: tuple[int, int]) -> None:
    weight = weights(*shape)
    own = HalvedLinear(weight)
    for rows in ROWS:
        x = inputs(rows, shape[1])
        assert error(own(x), x, weight) < 3e-7


def test_the_bound_is_missed_by_inputs_of_sixteen_bits() -> None:
    weight = weights(64, 96)
    x = inputs(4, 96)
    high = x.bfloat16().float()
    both = high + (x - high).bfloat16().float()
    assert error(HalvedLinear(weight)(both), x, weight) > 3e-7


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_has_the_same_bits_alone_and_in_a_block(shape: tuple[int, int]) -> None:
    own = HalvedLinear(weights(*shape))
    for rows in ROWS[1:-1]:
        x = inputs(rows, shape[1])
        assert torch.equal(own(x), torch.cat([own(x[row : row + 1]) for row in range(rows)]))


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_an_input_loses_no_bit(value: float) -> None:
    """Times one, summed with zeros; what is smaller than the smallest normal number may become zero."""
    x = torch.zeros(1, 64)
    x[0, 17] = value
    (found,) = HalvedLinear(torch.ones(32, 64, dtype=torch.bfloat16))(x)[0].unique()
    assert math.isclose(found.item(), value, rel_tol=0.0, abs_tol=2e-38)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_not_finite_is_what_torch_makes_of_it(value: float, shape: tuple[int, int]) -> None:
    weight = weights(*shape).abs()
    x = inputs(2, shape[1])
    x[1, 1] = value
    found = HalvedLinear(weight)(x)
    torch.testing.assert_close(found[1], (x @ weight.float().T)[1], equal_nan=True)
    assert error(found[:1], x[:1], weight) < 3e-7


def test_only_bfloat16_numbers_are_halved() -> None:
    held = weights(1030, 8).float()
    assert can_be_halved(held)
    held[1029, 7] += 1e-6
    assert not can_be_halved(held)
    assert not can_be_halved(weights(4, 8))
    assert not can_be_halved(torch.full((4, 8), math.nan))


def test_a_bias_stays_whole() -> None:
    plain = nn.Linear(96, 64)
    plain.weight.data = weights(64, 96).float()
    own = fast_linear(plain)
    assert isinstance(own, HalvedLinear)
    torch.testing.assert_close(own(inputs(3, 96)), plain(inputs(3, 96)), rtol=1e-5, atol=1e-3)
    x = torch.zeros(1, 96)
    assert torch.equal(own(x), plain(x))


def test_one_weight_of_several_that_is_none_keeps_all_whole() -> None:
    linears = [nn.Linear(96, 64, bias=False) for _ in range(2)]
    linears[0].weight.data = weights(64, 96).float()
    assert isinstance(fused(linears, WeightArena()), NativeLinear)
    linears[1].weight.data = weights(64, 96, seed=1).float()
    assert isinstance(fused(linears, WeightArena()), HalvedLinear)


def test_the_weight_comes_back_and_is_saved_as_it_was_loaded() -> None:
    weight = weights(64, 96)
    own = HalvedLinear(weight)
    for held in (dense_weight(own), own.state_dict()["weight"]):
        assert held is not None
        assert held.dtype == torch.float32
        assert torch.equal(held, weight.float())


def test_a_copy_computes_the_same_on_its_own_memory() -> None:
    own, x = HalvedLinear(weights(64, 96)), inputs(2, 96)
    expected = own(x)
    copied = copy.deepcopy(own)
    own.weight.zero_()
    assert torch.equal(copied(x), expected)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt_neox"])
def test_a_model_keeps_its_dtype_and_its_logits_in_half_the_memory(family: str) -> None:
    plain, packed = (build_model(tiny_config(family)).bfloat16().float() for _ in range(2))
    pack_model(packed)
    assert any(isinstance(module, HalvedLinear) for module in packed.modules())
    assert packed.dtype == torch.float32
    assert weight_bytes(packed) < weight_bytes(plain)
    logits = []
    for model in (plain, packed):
        target = Target(model)
        logits.append(target.logits(torch.tensor(prompt_ids(40)), target.new_cache(64), start=0, keep=40))
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-4, atol=1e-4)


def test_its_tokens_are_those_of_generate() -> None:
    stock, packed = (build_model(tiny_config("llama")).bfloat16().float() for _ in range(2))
    pack_model(packed)
    ids = prompt_ids()
    expected = stock.generate(torch.tensor([ids]), max_new_tokens=60, do_sample=False, eos_token_id=None)
    run = Engine(Target(packed)).generate(ids, GenerationSettings(max_new_tokens=60))
    assert list(run.token_ids) == expected[0, len(ids) :].tolist()


def converted(*dtypes: torch.dtype) -> HalvedLinear:
    own = HalvedLinear(weights(64, 96), torch.ones(64))
    own(inputs(2, 96))  # described to the kernels in its first form
    for dtype in dtypes:
        own = own.to(dtype)
    return own


@pytest.mark.parametrize("rows", [2, MAX_ROWS + 1])
@pytest.mark.parametrize("dtypes", [(torch.float32,), (torch.bfloat16,), (torch.bfloat16, torch.float32)])
def test_a_conversion_changes_the_dtype_and_no_weight(dtypes: tuple[torch.dtype, ...], rows: int) -> None:
    own, x = converted(*dtypes), torch.randn(rows, 96).to(dtypes[-1])
    wanted = functional.linear(x, weights(64, 96).to(dtypes[-1]), torch.ones(64).to(dtypes[-1]))
    found = own(x)
    assert found.dtype == dtypes[-1]
    torch.testing.assert_close(found.float(), wanted.float(), rtol=2e-2, atol=2e-2)


def test_inputs_of_another_dtype_are_refused_and_not_misread() -> None:
    with pytest.raises(RuntimeError, match="dtype"):
        converted()(torch.ones(2, 96, dtype=torch.bfloat16))


@pytest.mark.parametrize("is_whole", [True, False])
def test_weights_that_are_loaded_later_are_not_rounded(is_whole: bool) -> None:
    own, x = HalvedLinear(weights(64, 96)), inputs(3, 96)
    own(x)
    other = torch.randn(64, 96) if is_whole else weights(64, 96, seed=1).float()
    assert not own.load_state_dict({"weight": other}).missing_keys
    assert torch.equal(own.dense_weight(), other)
    assert (own.weight.dtype == torch.float32) is is_whole
    torch.testing.assert_close(own(x), functional.linear(x, other), rtol=1e-5, atol=1e-3)
