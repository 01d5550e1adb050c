"""Heads over a part of the vocabulary: the model's own logits where they reach, and nothing elsewhere."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from tests.support.contracts import COMMITTED
from tests.support.plans import exit_heads
from tests.support.tiny_models import FAMILIES, VOCAB_SIZE, prompt_ids, tiny_model, tiny_target
from torch import Tensor, nn

from selfspec_runtime.draft_head import RANKS_NAME, ReducedHead, chosen_head
from selfspec_runtime.drafts.early_exit import EarlyExitSpec
from selfspec_runtime.drafts.quantized import QuantizedSpec
from selfspec_runtime.drafts.skipped import LayerSkipSpec
from selfspec_runtime.drafts.source import SourceSpec
from selfspec_runtime.errors import PlanError
from selfspec_runtime.layer_skip import LayerSkipSet
from selfspec_runtime.packed_linear import is_packable
from selfspec_runtime.packing import pack_model
from selfspec_runtime.processors import Processors
from selfspec_runtime.rules import make_rule
from selfspec_runtime.sampling import SamplingSettings
from selfspec_runtime.sequence import Sequence
from selfspec_runtime.target import Target

RANKED = [77, 3, 120, 5, 64, 9, 31, 4]
KEPT = sorted(RANKED)
IDS = torch.tensor(prompt_ids(9))


def with_head(target: Target, head: ReducedHead | None, *, keep: int = 3) -> Tensor:
    """The logits of all layers through a head."""
    program = replace(target.full, head=head)
    return target.logits(IDS, target.new_cache(), start=0, program=program, keep=keep)


def changed_head(head: nn.Module) -> Target:
    """A model with another head."""
    model = copy.deepcopy(tiny_model("llama"))
    model.set_output_embeddings(head)
    return Target(model)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_logits_are_the_models_own_with_its_caps_and_scales(family: str) -> None:
    target = tiny_target(family)
    full, cut = with_head(target, None), with_head(target, target.reduced_heads.over(RANKED, len(RANKED)))
    assert cut.shape == full.shape == (3, VOCAB_SIZE)
    torch.testing.assert_close(cut[:, KEPT], full[:, KEPT], rtol=1e-5, atol=1e-5)
    left_out = sorted(set(range(VOCAB_SIZE)) - set(KEPT))
    assert bool(cut[:, left_out].isneginf().all())
    assert full.std() > 0.1


def test_a_bias_is_cut_with_its_rows() -> None:
    head = nn.Linear(64, VOCAB_SIZE)
    nn.init.uniform_(head.bias, -5, 5)
    target = changed_head(head.requires_grad_(False))
    reduced = target.reduced_heads.over(RANKED, 8)
    torch.testing.assert_close(with_head(target, reduced)[:, KEPT], with_head(target, None)[:, KEPT])
    assert reduced.num_bytes == 8 * (64 * 4 + 4 + 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_packed_models_head_is_cut_and_packed(family: str, dtype: torch.dtype) -> None:
    model = copy.deepcopy(tiny_model(family)).to(dtype)
    pack_model(model)
    target = Target(model)
    head = target.reduced_heads.over(RANKED, 8)
    assert (type(head.linear) is nn.Linear) != is_packable(nn.Linear(64, 8, dtype=dtype)), "packed where it can be"
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(
        with_head(target, head)[:, KEPT], with_head(target, None)[:, KEPT], rtol=tolerance, atol=tolerance
    )
    assert head.num_bytes == 8 * (64 * dtype.itemsize + 8)


def test_rows_in_four_bits_are_close_and_smaller() -> None:
    target = tiny_target("llama")
    plain, four = (target.reduced_heads.over(range(64), 64, quantize=q) for q in (False, True))
    exact, rounded = with_head(target, plain)[:, :64], with_head(target, four)[:, :64]
    assert 0.01 < float((rounded - exact).norm() / exact.norm()) < 0.2
    assert four.num_bytes - 64 * 8 < 0.2 * (plain.num_bytes - 64 * 8)


def test_rows_in_four_bits_come_in_whole_blocks() -> None:
    heads = tiny_target("llama").reduced_heads
    assert heads.over(range(100), 33, quantize=True).token_ids.tolist() == list(range(64))
    assert heads.over(range(100), 33).token_ids.tolist() == list(range(33))


def test_equal_heads_are_one_while_they_are_used() -> None:
    heads = Target(tiny_model("llama")).reduced_heads
    first = heads.over(RANKED, 8)
    assert heads.over(list(reversed(RANKED)), 8) is first, "the same tokens in another order"
    assert heads.over(RANKED, 7) is not first
    assert len(heads._made) == 1, "what nobody uses any longer is freed"
    del first
    assert len(heads._made) == 0


@pytest.mark.parametrize("ends", [50, [50, 51]])
def test_tokens_that_end_a_text_are_kept_whatever_their_rank(ends: int | list[int]) -> None:
    model = copy.deepcopy(tiny_model("llama"))
    model.generation_config.eos_token_id = ends
    kept = Target(model).reduced_heads.over(RANKED, 4).token_ids.tolist()
    wanted = [ends] if isinstance(ends, int) else ends
    assert sorted([*wanted, *RANKED[: 4 - len(wanted)]]) == kept


def test_the_confidence_is_that_of_the_reduced_law() -> None:
    target = tiny_target("llama")
    logits = with_head(target, target.reduced_heads.over(RANKED, 8), keep=1)
    rule = make_rule(SamplingSettings(temperature=0.7, top_k=20), Processors())
    choice = rule.choose(logits, Sequence(COMMITTED, device=target.device), [], wants_confidence=True)
    assert choice.confidence == pytest.approx(float(logits[0, KEPT].softmax(dim=0).max()))
    assert choice.token_id in KEPT
    assert choice.probs is not None
    assert float(choice.probs[KEPT].sum()) == pytest.approx(1.0, abs=1e-6)


SPECS: list[SourceSpec] = [
    EarlyExitSpec(exit_layer=2, vocab_size=64),
    EarlyExitSpec(exit_layer=2, head="linear", vocab_size=64),
    LayerSkipSpec(skip=LayerSkipSet(attention=[1], mlp=[2]), vocab_size=64),
    QuantizedSpec(vocab_size=64),
    QuantizedSpec(quantize_head=True, vocab_size=64, skip=LayerSkipSet(mlp=[2])),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.describe())
def test_every_source_of_passes_counts_its_head(spec: SourceSpec) -> None:
    target, arrays = tiny_target("llama"), exit_heads()
    source = spec.build(target, arrays)
    whole = spec.model_copy(update={"vocab_size": None, "quantize_head": False}).build(target, arrays)
    head = source.program.head  # type: ignore[attr-defined]
    assert isinstance(head, ReducedHead)
    assert source.extra_bytes == whole.extra_bytes + head.num_bytes
    assert head.num_bytes > 0
    assert spec.describe().endswith(", 64 tokens")
    assert RANKS_NAME in spec.array_names()


def test_what_was_not_ranked_is_refused() -> None:
    target = tiny_target("llama")
    with pytest.raises(PlanError, match="ranking, which is missing"):
        chosen_head(target, {}, 8)
    with pytest.raises(PlanError, match="over 9 tokens was asked for, and the calibration ranks 8"):
        target.reduced_heads.over(RANKED, 9)
    with pytest.raises(PlanError, match="Token 4000 was ranked, and the model has 128"):
        target.reduced_heads.over([4000, 1], 2)
    assert chosen_head(target, {}, None) is None


def test_a_head_that_is_no_plain_linear_layer_is_refused() -> None:
    class Adapted(nn.Linear):
        pass

    with pytest.raises(PlanError, match="Adapted"):
        changed_head(Adapted(64, VOCAB_SIZE, bias=False)).reduced_heads.over(RANKED, 8)
