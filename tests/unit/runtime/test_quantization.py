"""Four-bit copies: close to the original, sharing what they can, and honest about their size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.faults import module_tree
from tests.support.tiny_models import build_model, prompt_ids, tiny_config, tiny_target
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from selfspec_runtime.errors import PlanError
from selfspec_runtime.layer_skip import LayerSkipSet
from selfspec_runtime.native.library import native_status
from selfspec_runtime.native.linear import FourBitLinear
from selfspec_runtime.packed_linear import PackedLinear, is_packable
from selfspec_runtime.quantization import BLOCK_SIZE, QuantizedModules, quantized_modules
from selfspec_runtime.target import Target

WIDTH = 2 * BLOCK_SIZE


def copied(*modules: nn.Module, dtype: torch.dtype = torch.float32) -> QuantizedModules:
    return quantized_modules(modules, dtype=dtype, device=torch.device("cpu"))


def linear(rows: int = 64, width: int = WIDTH, *, bias: bool = True, dtype: torch.dtype = torch.float32) -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rows + width)
        return nn.Linear(width, rows, bias=bias).to(dtype).requires_grad_(False)


def tensors_of(module: nn.Module) -> list[Tensor]:
    """Every tensor that a copied linear layer holds, wherever it keeps it."""
    if isinstance(module, FourBitLinear):
        return [module.codes, module.scales]
    state: Any = module.weight.quant_state
    return [module.weight.data, state.absmax]  # type: ignore[list-item]


def is_copied(module: nn.Module) -> bool:
    return isinstance(module, FourBitLinear) or type(module).__name__ == "Linear4bit"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_copy_maps_as_the_original_up_to_four_bits(dtype: torch.dtype) -> None:
    original = linear(dtype=dtype)
    (copy,) = copied(original, dtype=dtype).modules
    inputs = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(1)).to(dtype)
    expected, out = original(inputs).float(), copy(inputs).float()
    error = float((out - expected).norm() / expected.norm())
    assert 0.01 < error < 0.2
    assert copy(inputs).dtype == dtype


def test_the_layers_of_a_model_are_copied_and_the_model_is_left_alone() -> None:
    target = tiny_target("llama")
    tree = module_tree(target.model)
    copies = copied(*target.parts.layers)
    assert module_tree(target.model) == tree
    for layer, copy in zip(target.parts.layers, copies.modules, strict=True):
        linears = [module for module in layer.modules() if isinstance(module, nn.Linear)]
        assert len(linears) == 7
        assert sum(map(is_copied, copy.modules())) == 7
        assert not any(isinstance(module, nn.Linear) and not is_copied(module) for module in copy.modules())
        assert type(copy) is type(layer)


@pytest.mark.parametrize("family", ["qwen2", "gpt_neox", "gpt2"])
def test_norms_and_biases_are_the_models_own(family: str) -> None:
    layer = tiny_target(family).parts.layers[0]
    (copy,) = copied(layer).modules
    own = {name: id(tensor) for name, tensor in layer.named_parameters() if "norm" in name or name.endswith("bias")}
    own |= {name: id(tensor) for name, tensor in layer.named_parameters() if ".ln" in name or name.startswith("ln")}
    held = {name: id(tensor) for name, tensor in copy.named_parameters() if name in own}
    assert len(own) > 3
    assert held == own


@pytest.mark.parametrize(("rows", "width"), [(32, 64), (64, 128), (96, 192)])
def test_the_bytes_are_those_that_the_copy_holds(rows: int, width: int) -> None:
    copies = copied(linear(rows, width), linear(rows, width, bias=False))
    held = sum(t.numel() * t.element_size() for module in copies.modules for t in tensors_of(module))
    assert copies.num_bytes == held
    # Half a byte per weight, and a scale per block in two or four bytes.
    per_weight = copies.num_bytes / (2 * rows * width)
    assert 0.5 + 2 / BLOCK_SIZE <= per_weight <= 0.5 + 4 / BLOCK_SIZE


def test_a_bias_of_another_dtype_is_copied_and_the_models_own_stays() -> None:
    original = linear(dtype=torch.bfloat16)
    bias = nn.Parameter(original.bias.float(), requires_grad=False)
    original.bias = bias
    copies = copied(original, dtype=torch.bfloat16)
    assert original.bias is bias
    assert bias.dtype == torch.float32
    assert copies.modules[0].bias.dtype == torch.bfloat16


@pytest.mark.parametrize(("rows", "width"), [(33, 64), (64, 96), (31, 65)])
def test_weights_that_do_not_fit_stay_plain(rows: int, width: int) -> None:
    if width % BLOCK_SIZE == 0 and native_status().kernels is not None:
        pytest.skip("the own kernels take any number of rows")
    odd = linear(rows, width)
    copies = copied(nn.Sequential(linear(), odd))
    (copy,) = copies.modules
    assert is_copied(copy[0])  # type: ignore[index]
    assert copy[1] is odd  # type: ignore[index]
    assert copies.num_bytes == copied(linear()).num_bytes


def test_a_transposed_weight_is_copied_as_it_is_used() -> None:
    transposed = Conv1D(64, WIDTH).requires_grad_(False)
    inputs = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(1))
    expected, out = transposed(inputs), copied(transposed).modules[0](inputs)
    assert float((out - expected).norm() / expected.norm()) < 0.2


@pytest.mark.skipif(not is_packable(nn.Linear(64, 32)), reason="this PyTorch was built without oneDNN")
def test_a_packed_weight_is_copied_as_the_weight_it_was() -> None:
    original = linear()
    packed = PackedLinear(original.weight.data, original.bias.data)
    inputs = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(1))
    (copy,) = copied(packed).modules
    assert torch.equal(copy(inputs), copied(original).modules[0](inputs))
    assert copy.bias.data_ptr() == packed.bias.data_ptr()


def test_a_quantised_model_is_refused() -> None:
    copies = copied(*tiny_target("llama").parts.layers)
    with pytest.raises(PlanError, match=r"LlamaDecoderLayer has no plain linear layers.*quantised already"):
        copied(*copies.modules)


@pytest.mark.parametrize("modules", [(), (nn.LayerNorm(8),), (linear(31, 65),)])
def test_nothing_to_copy_is_refused(modules: tuple[nn.Module, ...]) -> None:
    with pytest.raises(PlanError, match="no plain linear layers to copy in NF4"):
        copied(*modules)


class Mixture(nn.Module):
    """Four experts of an older make: a list, and a router that is a plain linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.router = linear(4, bias=False)
        self.weigher = linear(1, bias=False)
        self.experts = nn.ModuleList(linear() for _ in range(4))


def test_routers_of_mixtures_stay_as_they_are() -> None:
    mixture = Mixture()
    (copy,) = copied(mixture).modules
    assert copy.router is mixture.router
    assert copy.weigher is mixture.weigher
    assert all(is_copied(expert) for expert in copy.experts)


def test_a_router_that_reads_its_weights_dtype_runs_in_a_copy() -> None:
    experts = {"num_experts": 4, "moe_topk": 2, "num_local_experts": 4}
    target = Target(build_model(tiny_config("hunyuan_v1_moe", **experts)))
    program = target.programs.without(LayerSkipSet(), layers=target.quantized_layers.modules)
    ids = torch.tensor(prompt_ids(8))
    drafted = target.logits(ids, target.new_cache(), start=0, program=program)
    own = target.logits(ids, target.new_cache(), start=0)
    assert 0.0 < float((drafted - own).norm() / own.norm()) < 0.7
    for copy, layer in zip(target.quantized_layers.modules, target.parts.layers, strict=True):
        assert copy.mlp.gate.wg is layer.mlp.gate.wg
        assert is_copied(copy.mlp.shared_mlp.up_proj)
