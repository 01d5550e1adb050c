from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.nearness import assert_near
from torch import Tensor, nn
from torch.nn import functional

from selfspec_runtime.errors import UsageError
from selfspec_runtime.four_bit import FourBitWeight
from selfspec_runtime.lean_attention import rotate
from selfspec_runtime.native.library import MAX_ROWS, native_status
from selfspec_runtime.native.linear import NativeLinear, is_native
from selfspec_runtime.native.matrix import NativeMatrix, four_bit_codes, nibbles_of
from selfspec_runtime.native.operations import (
    HeadShape,
    NormWeight,
    fits,
    gated_mlp,
    linear,
    project,
)
from selfspec_runtime.native.row_groups import GROUP, in_groups, in_rows

pytestmark = pytest.mark.skipif(native_status().kernels is None, reason=native_status().reason or "kernels at hand")

DTYPES = (torch.float32, torch.bfloat16)
# A width for each way through a product: whole vectors, pairs of vectors with a rest, and matrix-unit tiles.
SHAPES = ((64, 96), (7, 33), (50, 80), (96, 576), (3, 5))


def states(rows: int, width: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(1, rows, width, generator=torch.Generator().manual_seed(seed)).to(dtype)


def row_by_row(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return torch.cat([function(x[:, row : row + 1]) for row in range(x.shape[1])], dim=1)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_is_the_stock_one(dtype: torch.dtype, shape: tuple[int, int], bias: bool) -> None:
    plain = nn.Linear(shape[1], shape[0], bias=bias, dtype=dtype)
    own = NativeLinear(plain.weight, plain.bias)
    for rows in (1, 2, 3, 5, 8, MAX_ROWS, MAX_ROWS + 1):
        x = states(rows, shape[1], dtype, rows)
        with torch.no_grad():
            assert_near(own(x), plain(x))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_alone_and_in_a_block(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    own = NativeLinear(torch.randn(*shape).to(dtype))
    for rows in (2, 5, 7, 16, 17, MAX_ROWS):
        x = states(rows, shape[1], dtype, rows)
        assert torch.equal(own(x), row_by_row(own, x))


def test_the_number_of_threads_changes_no_bit() -> None:
    own, x, threads = NativeLinear(torch.randn(130, 96)), states(3, 96, torch.float32), torch.get_num_threads()
    try:
        found = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(own(x))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_a_number_stays_so_and_infinities_stay(dtype: torch.dtype) -> None:
    weight = torch.eye(32).to(dtype)
    x = torch.zeros(1, 2, 32, dtype=dtype)
    x[0, 0, 3], x[0, 1, 5] = float("nan"), float("inf")
    out = linear(x, NativeMatrix(weight, dtype=dtype))
    assert out[0, 0].isnan().any()
    assert out[0, 1].isnan().any() or out[0, 1, 5] == float("inf")


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gated_mlp_is_the_stock_one_and_exact_in_rows(dtype: torch.dtype) -> None:
    gate_up, down = torch.randn(2 * 96, 64).to(dtype) / 8, torch.randn(64, 96).to(dtype) / 8
    norm = NormWeight(torch.rand(64).to(dtype) + 0.5, 1e-5)

    def own(x: Tensor) -> Tensor:
        return gated_mlp(x, norm, gate_up=NativeMatrix(gate_up, dtype=dtype), down=NativeMatrix(down, dtype=dtype))

    x = states(6, 64, dtype)
    gate, up = functional.linear(functional.rms_norm(x, (64,), norm.weight, norm.eps), gate_up).chunk(2, dim=-1)
    wanted = functional.linear(functional.silu(gate) * up, down)
    assert_near(own(x), wanted)
    assert torch.equal(own(x), row_by_row(own, x))


@pytest.mark.parametrize("head_norm", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_projection_rotates_heads_as_the_stock_layers_do(dtype: torch.dtype, head_norm: bool) -> None:
    shape, rows = HeadShape(queries=4, keys=2, dim=16), 5
    weight, norm = torch.randn(8 * 16, 64).to(dtype) / 8, NormWeight(torch.rand(64).to(dtype) + 0.5, 1e-5)
    each = NormWeight(torch.rand(16).to(dtype) + 0.5, 1e-5)
    angles = torch.randn(1, rows, 8).repeat(1, 1, 2)
    rotary = angles.cos().to(dtype), angles.sin().to(dtype)
    x = states(rows, 64, dtype)
    found = project(
        x,
        norm,
        NativeMatrix(weight, dtype=dtype),
        shape=shape,
        rotary=rotary,
        head_norms=(each, each) if head_norm else None,
    )
    heads = functional.linear(functional.rms_norm(x, (64,), norm.weight, norm.eps), weight).view(1, rows, 8, 16)
    turned, values = heads.split([6, 2], dim=2)
    if head_norm:
        turned = functional.rms_norm(turned, (16,), each.weight, each.eps)
    turned = rotate(turned, *rotary).transpose(1, 2)
    for own, wanted in zip(found, (turned[:, :4], turned[:, 4:], values.transpose(1, 2)), strict=True):
        assert_near(own, wanted)


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 2**16))
def test_codes_are_laid_out_and_found_again(rows: int, blocks: int, seed: int) -> None:
    nibbles = torch.randint(0, 16, (rows, 64 * blocks), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
    assert torch.equal(nibbles_of(four_bit_codes(nibbles)), nibbles)


@given(st.integers(1, 70), st.integers(1, 4), st.sampled_from([1, 16]))
def test_blocks_are_put_in_groups_and_back(rows: int, blocks: int, block_width: int) -> None:
    values = torch.arange(rows * blocks * block_width).view(rows, blocks * block_width)
    grouped = in_groups(values, block_width)
    assert torch.equal(in_rows(grouped, block_width), values)
    height = min(rows, GROUP)
    first = values[:height, :block_width]
    assert torch.equal(grouped.reshape(-1)[: height * block_width].view_as(first), first)


@pytest.mark.parametrize("heights", [(32, 64), (50, 14), (7, 32)])
def test_weights_that_are_joined_stay_what_they_are(heights: tuple[int, int]) -> None:
    parts = [FourBitWeight.quantized(torch.randn(height, 128)) for height in heights]
    joined = FourBitWeight.joined(parts, lambda placed: placed[0])
    dense = [weight.linear(None, torch.float32).dense_weight() for weight in (*parts, joined)]
    assert torch.equal(torch.cat(dense[:2]), dense[2])


@pytest.mark.parametrize("rows", [50, 64])  # the vector units, and where there are some the matrix units
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_four_bit_product_is_that_of_the_weight_that_bitsandbytes_would_unpack(dtype: torch.dtype, rows: int) -> None:
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    weight = torch.randn(rows, 192).to(dtype)
    own = FourBitWeight.quantized(weight).linear(None, dtype)
    packed, state = quantize_4bit(weight, blocksize=64, quant_type="nf4")
    unpacked = dequantize_4bit(packed, state)
    assert_near(own.dense_weight(), unpacked)
    for positions in (1, 3, 6, 7, MAX_ROWS + 1):
        x = states(positions, 192, dtype, positions)
        assert_near(own(x), functional.linear(x, own.dense_weight()))
    for positions in (9, 17):
        x = states(positions, 192, dtype)
        assert torch.equal(own(x), row_by_row(own, x))


def test_a_conversion_leaves_four_bit_weights_as_they_are() -> None:
    own = FourBitWeight.quantized(torch.randn(64, 128)).linear(torch.ones(64), torch.float32)
    x, dense = states(3, 128, torch.float32), own.dense_weight()
    own(x)
    own = own.to(torch.bfloat16)
    assert own.dense_weight().dtype == torch.bfloat16
    assert_near(own(x.bfloat16()), functional.linear(x, dense, torch.ones(64)).bfloat16())
    assert torch.equal(own.to(torch.float32).dense_weight(), dense)


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_a_layer_of_bitsandbytes_is_taken_over_as_it_is(kind: str, nested: bool) -> None:
    import bitsandbytes as bnb

    stock = bnb.nn.Linear4bit(128, 64, compute_dtype=torch.float32, quant_type=kind, compress_statistics=nested)
    dense = stock.weight.data.clone()
    stock = stock.to("cpu")
    if getattr(stock.weight, "quant_state", None) is None:
        stock.weight = bnb.nn.Params4bit(dense, requires_grad=False, quant_type=kind, blocksize=64).to("cpu")
    taken = FourBitWeight.of(stock)
    assert taken is not None
    x = states(3, 128, torch.float32)
    own = taken.linear(stock.bias, torch.float32)
    with torch.no_grad():
        assert_near(own(x), stock(x))


def test_a_layer_that_bitsandbytes_repacked_is_left_alone() -> None:
    assert FourBitWeight.of(nn.Linear(64, 64)) is None


def test_a_copy_computes_by_itself_and_a_moved_weight_is_found() -> None:
    own = NativeLinear(torch.randn(8, 16))
    x = states(2, 16, torch.float32)
    wanted = own(x)
    copied = copy.deepcopy(own)
    own.weight.data = torch.zeros(8, 16)
    assert torch.equal(copied(x), wanted)
    assert not own(x).any()


def test_only_exactly_plain_linears_of_a_known_dtype_are_taken() -> None:
    class Adapter(nn.Linear):
        pass

    assert is_native(nn.Linear(8, 8))
    assert not is_native(Adapter(8, 8))
    assert not is_native(nn.Linear(8, 8, dtype=torch.float16))
    assert not is_native(nn.Linear(8, 8, device="meta"))
    assert not fits(MAX_ROWS + 1, torch.float32, torch.device("cpu"))


def test_four_bit_codes_refuse_to_be_saved() -> None:
    own = FourBitWeight.quantized(torch.randn(8, 64)).linear(None, torch.float32)
    with pytest.raises(UsageError, match="pack=False"):
        own.state_dict()
