"""A rebuilt model's own pass says what transformers' forward says around the same layers, whatever the program."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import pytest
import torch
from tests.support.tiny_models import build_model, prompt_ids, tiny_config, tiny_model
from torch import Tensor, nn
from transformers import PreTrainedModel

from selfspec_runtime.cache import KVCache
from selfspec_runtime.layer_skip import LayerSkipSet
from selfspec_runtime.lean_pass import LeanPass
from selfspec_runtime.masks import block_mask
from selfspec_runtime.native.library import MAX_ROWS, Kernels, native_status
from selfspec_runtime.packing import pack_model
from selfspec_runtime.program import LayerProgram
from selfspec_runtime.stock_pass import StockPass
from selfspec_runtime.target import Target
from selfspec_runtime.tree.token_tree import PlacedTree, TokenTree

LEAN = ("llama", "mistral", "qwen2", "qwen3")
DTYPES = (torch.float32, torch.bfloat16)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 4e-2}
PROMPT = 40


def rebuilt(family: str, dtype: torch.dtype = torch.float32) -> tuple[Target, Target]:
    """The same rebuilt model twice: by its own pass, and through transformers' forward."""
    model = copy.deepcopy(tiny_model(family)).to(dtype)
    pack_model(model)
    lean, stock = Target(model), Target(model)
    assert type(lean.passes) is LeanPass
    stock.passes = StockPass(stock.parts)
    return lean, stock


def rebuilt_of(model: PreTrainedModel) -> Target:
    model = copy.deepcopy(model)
    pack_model(model)
    return Target(model)


def programs(target: Target) -> dict[str, LayerProgram]:
    make, generator = target.programs, torch.Generator().manual_seed(0)
    weight = torch.randn(64, 64, generator=generator).to(target.dtype) / 64
    skips = LayerSkipSet(attention=frozenset({0, 1}), mlp=frozenset({1, 2}))
    return {
        "full": make.full(),
        "exit": make.exit_at(2)[0],
        "exit after the first": make.exit_at(1)[0],
        "linear exit": make.exit_at(2, weights=(weight,))[0],
        "skips": make.without(skips),
        "quantised": make.without(LayerSkipSet(), layers=target.quantized_layers.modules),
    }


def read(target: Target, program: LayerProgram, ids: Tensor, starts: tuple[int, ...]) -> tuple[list[Tensor], KVCache]:
    cache = target.new_cache(64)
    if starts[0]:
        target.logits(ids[:PROMPT], cache, start=0)
    edges = (*starts, len(ids))
    blocks = [(a, ids[a:b]) for a, b in pairwise(edges)]
    return [target.logits(block, cache, start=start, program=program) for start, block in blocks], cache


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", LEAN)
def test_every_program_says_the_same(family: str, dtype: torch.dtype) -> None:
    lean, stock = rebuilt(family, dtype)
    ids = torch.tensor(prompt_ids(PROMPT + 44))
    plans = programs(lean)
    for name, program in plans.items():
        found, own = read(lean, program, ids, (40, 41, 44, 49))
        wanted, theirs = read(stock, program, ids, (40, 41, 44, 49))
        for block, expected in zip(found, wanted, strict=True):
            torch.testing.assert_close(
                block, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype], msg=lambda m, n=name: f"{n}: {m}"
            )
        for index in range(lean.num_layers):
            for ours, other in zip(own.layer(index), theirs.layer(index), strict=True):
                assert torch.equal(ours, other), name


@pytest.mark.parametrize("rows", [1, 4, 40])
@pytest.mark.parametrize("family", LEAN)
def test_an_exit_resumed_is_the_full_pass_bit_for_bit(family: str, rows: int) -> None:
    lean, _ = rebuilt(family)
    ids, cache = torch.tensor(prompt_ids(PROMPT + rows)), lean.new_cache()
    lean.logits(ids[:PROMPT], cache, start=0)
    whole = lean.logits(ids[PROMPT:], cache, start=PROMPT)
    first, out = lean.programs.exit_at(2)
    lean.advance(ids[PROMPT:], cache, start=PROMPT, program=first)
    rest, into = lean.programs.resume_at(2)
    into.hidden = out.hidden
    assert torch.equal(lean.logits(ids[PROMPT:], cache, start=PROMPT, program=rest), whole)


@pytest.mark.parametrize("family", LEAN)
def test_trees_and_other_positions_are_seen_as_transformers_sees_them(family: str) -> None:
    lean, stock = rebuilt(family)
    ids = torch.tensor(prompt_ids(PROMPT + 4))
    tree = PlacedTree(TokenTree((-1, 0, 1, 0)), PROMPT)
    outputs = []
    for target in (lean, stock):
        cache = target.new_cache()
        target.logits(ids[:PROMPT], cache, start=0)
        branched = target.logits(ids[PROMPT:], cache, start=PROMPT, tree=tree)
        moved = target.logits(ids[PROMPT:], cache, start=PROMPT, positions=torch.tensor([50, 51, 52, 60]))
        outputs.append((branched, moved))
    for found, wanted in zip(*outputs, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(*outputs[0])


def test_layers_of_two_kinds_get_the_mask_of_their_kind() -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        use_sliding_window=True,
        sliding_window=8,
        max_window_layers=2,
        attn_implementation="sdpa",
    )
    model = Qwen3ForCausalLM(config).eval()
    ids = torch.tensor(prompt_ids(PROMPT + 6))
    wanted = model(ids[None], use_cache=False).logits[0, PROMPT:].detach()
    pack_model(model)
    lean = Target(model)
    assert type(lean.passes) is LeanPass
    assert set(lean.parts.layer_kinds or ()) == {"full_attention", "sliding_attention"}
    for starts in ((40,), (40, 41, 42, 43, 44, 45)):
        found, _ = read(lean, lean.full, ids, starts)
        torch.testing.assert_close(torch.cat(found), wanted, rtol=1e-4, atol=1e-4)


def test_a_cache_of_another_kind_is_asked_as_attention_modules_ask_it() -> None:
    class Counting(KVCache):
        asked = 0

        def update(self, *given: Any, **named: Any) -> tuple[Tensor, Tensor]:
            self.asked += 1
            return super().update(*given, **named)

    lean, _ = rebuilt("llama")
    ids, plain, other = torch.tensor(prompt_ids(9)), lean.new_cache(), Counting(4)
    assert torch.equal(lean.logits(ids, other, start=0), lean.logits(ids, plain, start=0))
    assert other.asked == lean.num_layers


def test_an_explicit_mask_is_kept_to() -> None:
    lean, stock = rebuilt("llama")
    ids = torch.tensor(prompt_ids(9))
    mask = block_mask(lean.parts, start=0, num_tokens=9, dtype=torch.float32, device=lean.device)
    assert isinstance(mask, Tensor)
    mask[..., 3] = False
    mask[..., 3, 3] = True
    found = lean.logits(ids, lean.new_cache(), start=0, mask=mask)
    wanted = stock.logits(ids, stock.new_cache(), start=0, mask=mask)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(found, lean.logits(ids, lean.new_cache(), start=0))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []
    original = Kernels.call

    def call(self: Kernels, name: str, dtype: torch.dtype, *arguments: object) -> None:
        made.append(name)
        original(self, name, dtype, *arguments)

    monkeypatch.setattr(Kernels, "call", call)
    return made


@pytest.mark.skipif(native_status().kernels is None, reason="counts calls of the compiled kernels")
def test_neighbouring_layers_are_one_call(calls: list[str]) -> None:
    lean, _ = rebuilt("llama")
    cache, token = lean.new_cache(), torch.tensor([7])
    skips = lean.programs.without(LayerSkipSet(attention=frozenset({0, 1}), mlp=frozenset({1, 2})))
    rest, into = lean.programs.resume_at(2)
    into.hidden = torch.zeros(1, 1, 64)
    wanted = {
        lean.full: ["layers", "linear"],
        lean.programs.exit_at(2)[0]: ["layers", "linear"],
        skips: ["layers", "linear"],
        rest: ["layers", "linear"],
    }
    for program, expected in wanted.items():
        calls.clear()
        lean.logits(token, cache, start=0, program=program)
        assert calls == expected
    calls.clear()
    lean.advance(token, cache, start=0, program=lean.full)
    assert calls == ["layers"]


def test_the_models_own_forward_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    lean, _ = rebuilt("llama")

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(lean.parts.base, "forward", refuse)
    assert lean.logits(torch.tensor([7]), lean.new_cache(), start=0).shape == (1, 128)


def test_weights_that_are_changed_later_are_the_ones_that_count() -> None:
    lean, _ = rebuilt("llama")
    ids = torch.tensor(prompt_ids(5))
    before = lean.logits(ids, lean.new_cache(), start=0)
    mlp = lean.parts.layers[1].get_submodule("mlp.down_proj")
    mlp.weight.data = torch.zeros_like(mlp.weight.data)
    silent = lean.programs.without(LayerSkipSet(mlp=frozenset({1})))
    found = lean.logits(ids, lean.new_cache(), start=0)
    assert not torch.allclose(found, before)
    torch.testing.assert_close(found, lean.logits(ids, lean.new_cache(), start=0, program=silent))


def test_a_norm_that_is_changed_later_is_the_one_that_counts() -> None:
    lean, _ = rebuilt("qwen3")
    ids = torch.tensor(prompt_ids(5))
    before = lean.logits(ids, lean.new_cache(), start=0)
    norms = [module for name, module in lean.parts.layers[1].named_modules() if name.endswith("norm")]
    for norm in norms:
        kept = norm.weight.data
        norm.weight.data = torch.zeros_like(kept)
        assert not torch.allclose(lean.logits(ids, lean.new_cache(), start=0), before)
        norm.weight.data = kept.clone()
    assert len(norms) == 4
    assert torch.equal(lean.logits(ids, lean.new_cache(), start=0), before)


def test_a_weight_or_a_module_that_is_replaced_is_noticed() -> None:
    lean, _ = rebuilt("llama")
    ids = torch.tensor(prompt_ids(5))
    before = lean.logits(ids, lean.new_cache(), start=0)
    mlp: Any = lean.parts.layers[2].get_submodule("mlp")
    original, weight = mlp.down_proj, mlp.down_proj.weight
    original.weight = torch.nn.Parameter(torch.zeros_like(weight))
    zero = lean.logits(ids, lean.new_cache(), start=0)
    original.weight = weight
    assert torch.equal(lean.logits(ids, lean.new_cache(), start=0), before)
    mlp.down_proj = copy.deepcopy(original)
    mlp.down_proj.weight.data = torch.zeros_like(weight)
    assert torch.equal(lean.logits(ids, lean.new_cache(), start=0), zero)
    assert not torch.equal(zero, before)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_model_that_is_converted_after_a_pass_computes_in_its_new_dtype(family: str) -> None:
    lean, _ = rebuilt(family)
    ids = torch.tensor(prompt_ids(5))
    before = lean.logits(ids, lean.new_cache(), start=0)
    lean.model.to(torch.bfloat16)
    after = lean.logits(ids, lean.new_cache(), start=0)
    assert after.dtype == torch.bfloat16
    torch.testing.assert_close(after.float(), before, rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    "name", ["layers.1.input_layernorm", "layers.1.post_attention_layernorm", "layers.1.self_attn.q_norm", "norm"]
)
def test_a_norm_weight_that_is_replaced_is_heard_in_short_blocks_and_in_long_ones(name: str) -> None:
    lean, _ = rebuilt("qwen3")
    ids = torch.tensor(prompt_ids(MAX_ROWS + 1))
    before = lean.logits(ids[:5], lean.new_cache(), start=0)
    norm = lean.model.model.get_submodule(name)
    norm.weight = nn.Parameter(norm.weight.detach() + torch.rand(norm.weight.shape))
    short, long = (lean.logits(ids[:count], lean.new_cache(), start=0)[:5] for count in (5, MAX_ROWS + 1))
    torch.testing.assert_close(short, long, rtol=1e-5, atol=1e-5)
    assert (short - before).abs().max() > 1e-3


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
def test_norms_of_another_dtype_are_read_as_what_they_are() -> None:
    lean, _ = rebuilt("llama", torch.bfloat16)
    ids = torch.tensor(prompt_ids(5))
    before = lean.logits(ids, lean.new_cache(), start=0)
    for layer in lean.parts.layers:
        layer.post_attention_layernorm.float()
        layer.input_layernorm.float()
    found = lean.logits(ids, lean.new_cache(), start=0)
    torch.testing.assert_close(found, before, rtol=0.1, atol=0.1)


def test_under_autocast_it_says_about_the_same() -> None:
    lean, _ = rebuilt("llama")
    ids, cache = torch.tensor(prompt_ids(PROMPT + 2)), lean.new_cache()
    wanted = lean.logits(ids, lean.new_cache(), start=0, keep=1)
    with torch.autocast("cpu", torch.bfloat16):
        lean.logits(ids[:PROMPT], cache, start=0)
        lean.logits(ids[PROMPT:-1], cache, start=PROMPT)
    # Keys are float32 and values bfloat16 by now, which no kernel may be told to read.
    found = lean.logits(ids[-1:].clone(), cache, start=PROMPT + 1)
    torch.testing.assert_close(found.float(), wanted, rtol=0.1, atol=0.3)


def test_a_cache_of_another_model_is_refused_instead_of_overrun() -> None:
    lean, _ = rebuilt("llama")
    ids = torch.tensor(prompt_ids(3))
    with pytest.raises(IndexError):
        lean.logits(ids, KVCache(2), start=0)
    narrow = KVCache(4)
    narrow.begin(0, 1)
    for layer in range(4):
        narrow.update(torch.zeros(1, 1, 1, 8), torch.zeros(1, 1, 1, 8), layer)
    with pytest.raises(RuntimeError):
        lean.logits(ids, narrow, start=0)


def test_hidden_states_of_another_number_of_rows_are_refused_instead_of_overrun() -> None:
    lean, _ = rebuilt("llama")
    rest, into = lean.programs.resume_at(2)
    into.hidden = torch.zeros(1, 3, 64)
    with pytest.raises(RuntimeError):
        lean.logits(torch.tensor([5]), lean.new_cache(8), start=7, program=rest)


def test_a_cache_that_grew_or_moved_is_written_where_it_is() -> None:
    lean, _ = rebuilt("llama")
    ids, cache = torch.tensor(prompt_ids(30)), lean.new_cache(4)
    for start in range(30):
        cache.length = start + 1
        last = lean.logits(ids[start : start + 1], cache, start=start)
        if start == 10:
            cache.adopt(*(tuple(held.clone() for held in store) for store in cache.storage()))
    whole = lean.new_cache()
    torch.testing.assert_close(last, lean.logits(ids, whole, start=0, keep=1), rtol=1e-5, atol=1e-5)
    copied = copy.deepcopy(cache)
    lean.logits(ids[:1], copied, start=30)
    assert not torch.equal(copied.storage()[0][0], cache.storage()[0][0])


def test_biases_and_heads_of_their_own_width_are_taken_over() -> None:
    model = build_model(
        tiny_config("llama", attention_bias=True, mlp_bias=True, head_dim=32, num_attention_heads=2)
    ).eval()
    ids = torch.tensor(prompt_ids(12))
    wanted = model(ids[None], use_cache=False).logits[0].detach()
    pack_model(model)
    lean = Target(model)
    assert type(lean.passes) is LeanPass
    torch.testing.assert_close(lean.logits(ids, lean.new_cache(), start=0), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_kinds_of_layers_that_the_family_does_not_read_change_nothing(family: str) -> None:
    kinds = ["sliding_attention", "full_attention"] * 2
    model = build_model(tiny_config(family, sliding_window=8, layer_types=kinds))
    ids = torch.tensor(prompt_ids(PROMPT))
    wanted = model(ids[None], use_cache=False).logits[0].detach()
    for target in (Target(model), rebuilt_of(model)):
        found, _ = read(target, target.full, ids, tuple(range(PROMPT)))
        torch.testing.assert_close(torch.cat(found), wanted, rtol=1e-4, atol=1e-4)


def test_a_model_that_only_looks_like_one_keeps_its_own_forward() -> None:
    from transformers import LlamaForCausalLM

    class Scaled(LlamaForCausalLM):
        def forward(self, *given: Any, **named: Any) -> Any:
            output = super().forward(*given, **named)
            output.logits = output.logits * 3
            return output

    Scaled.__name__ = "LlamaForCausalLM"  # as a checkpoint's own code likes to name it
    plain = copy.deepcopy(tiny_model("llama"))
    scaled = Scaled(plain.config).eval()
    scaled.load_state_dict(plain.state_dict())
    for model in (plain, scaled):
        pack_model(model)
    ids = torch.tensor(prompt_ids(5))
    found, base = (Target(m).logits(ids, Target(m).new_cache(), start=0) for m in (scaled, plain))
    torch.testing.assert_close(found, base * 3, rtol=1e-5, atol=1e-5)
