from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from tests.support.tiny_models import MAIN_FAMILIES, prompt_ids, tiny_model

from selfspec_runtime.errors import UsageError
from selfspec_runtime.layer_skip import LayerSkipSet
from selfspec_runtime.lean_layer import LEAN_FAMILIES, LeanLayer
from selfspec_runtime.native.library import native_status
from selfspec_runtime.packed_linear import PackedLinear, is_packable
from selfspec_runtime.packing import pack_model
from selfspec_runtime.target import Target

LEAN = ("llama", "mistral", "qwen2", "qwen3")
#: torch's own norm of heads rounds by the number of rows in float32; the kernels' does not.
EXACT = LEAN if native_status().kernels is not None else LEAN[:3]


def packed_copy(family: str, dtype: torch.dtype = torch.float32) -> Target:
    model = copy.deepcopy(tiny_model(family)).to(dtype)
    pack_model(model)
    return Target(model)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_packed_linear_equals_the_plain_one(rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    plain = torch.nn.Linear(64, 96, dtype=dtype)
    packed = PackedLinear(plain.weight, plain.bias)
    states = torch.randn(1, rows, 64, dtype=dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 4e-2
    with torch.no_grad():
        torch.testing.assert_close(packed(states), plain(states), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_packed_linear_rounds_the_same_for_any_number_of_rows(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    packed = PackedLinear(torch.randn(96, 64, dtype=dtype))
    states = torch.randn(1, 8, 64, dtype=dtype)
    block = packed(states)
    singles = torch.cat([packed(states[:, row : row + 1]) for row in range(8)], dim=1)
    assert torch.equal(block, singles)


def test_the_dense_weight_comes_back_bit_for_bit() -> None:
    weight = torch.randn(96, 64, dtype=torch.bfloat16)
    assert torch.equal(PackedLinear(weight).dense_weight(), weight)


def test_only_exactly_plain_linears_are_packed() -> None:
    class Adapter(torch.nn.Linear):
        pass

    assert is_packable(torch.nn.Linear(8, 8))
    assert not is_packable(Adapter(8, 8))
    assert not is_packable(torch.nn.Linear(8, 8, dtype=torch.float16))
    assert not is_packable(torch.nn.Linear(8, 8, device="meta"))


@pytest.mark.parametrize("family", MAIN_FAMILIES)
def test_a_packed_model_computes_the_same_logits(family: str) -> None:
    plain, packed = Target(tiny_model(family)), packed_copy(family)
    ids = torch.tensor(prompt_ids(40))
    caches = plain.new_cache(), packed.new_cache()
    for start, block in ((0, ids), (40, ids[:5]), (43, ids[:1])):
        wanted = plain.logits(block, caches[0], start=start)
        found = packed.logits(block, caches[1], start=start)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", LEAN)
def test_llama_like_layers_become_lean_and_keep_no_original_projection(family: str) -> None:
    packed = packed_copy(family)
    assert all(isinstance(layer, LeanLayer) for layer in packed.parts.layers)
    names = {type(module).__name__ for layer in packed.parts.layers for module in layer.modules()}
    assert "Linear" not in names
    assert not names & set(LEAN_FAMILIES)


@pytest.mark.parametrize("family", LEAN)
def test_transformers_generate_runs_on_a_packed_model(family: str) -> None:
    ids = torch.tensor([prompt_ids(20)])
    wanted = tiny_model(family).generate(ids, max_new_tokens=30, do_sample=False)
    assert torch.equal(packed_copy(family).model.generate(ids, max_new_tokens=30, do_sample=False), wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", EXACT)
def test_a_block_has_the_bits_of_single_steps(family: str, dtype: torch.dtype) -> None:
    target = packed_copy(family, dtype)
    ids, cache = torch.tensor(prompt_ids(45)), target.new_cache()
    target.logits(ids[:40], cache, start=0)
    block = target.logits(ids[40:], cache, start=40)
    singles = [target.logits(ids[i : i + 1], cache, start=i)[0] for i in range(40, 45)]
    assert torch.equal(block, torch.stack(singles))


def test_a_quantised_copy_of_a_packed_model_is_the_copy_of_the_plain_one() -> None:
    plain, packed = Target(tiny_model("llama")), packed_copy("llama")
    ids = torch.tensor(prompt_ids(12))
    outputs = []
    for target in (plain, packed):
        program = target.programs.without(LayerSkipSet(), layers=target.quantized_layers.modules)
        outputs.append(target.logits(ids, target.new_cache(), start=0, program=program))
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-4, atol=1e-4)


def test_a_packed_model_refuses_to_be_saved_instead_of_losing_its_weights(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="pack=False"):
        packed_copy("llama").model.save_pretrained(tmp_path)
