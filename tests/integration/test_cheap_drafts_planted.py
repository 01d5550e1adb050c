"""Lookups, reduced heads, low ranks and four bits on models that suit them, and on one that suits nobody.

Costs are counted: the bytes of weights that a pass reads, and a tenth of a pass for every further row of a block.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.support.plans import exit_heads
from tests.support.tiny_models import build_model, hopeless, planted, prompt_ids, tiny_config

from selfspec_calibrate.corpus_texts import fit_corpus
from selfspec_calibrate.exit_heads import fit_exit_heads
from selfspec_calibrate.folds import fold_arrays, folds
from selfspec_calibrate.trace import Trace
from selfspec_calibrate.vocabulary_ranks import fit_vocabulary_ranks
from selfspec_runtime.engine import Engine
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.plan import DraftPlan
from selfspec_runtime.target import Target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn
    from transformers import PreTrainedModel

VOCAB_SIZE, SAID, HIDDEN, LAYERS = 2048, 256, 64, 4
ROW_COST = 0.1
NUM_TOKENS = 56
PROMPTS = [prompt_ids(16, seed=seed, vocab_size=VOCAB_SIZE) for seed in range(3)]


@cache
def large_headed() -> PreTrainedModel:
    """Half of its weights are the head's."""
    return build_model(tiny_config("llama", vocab_size=VOCAB_SIZE))


@cache
@torch.no_grad()
def suited() -> Target:
    """Its last two layers say nothing, and it says the first 256 tokens only."""
    model = planted(large_headed(), exit_layer=2)
    model.get_output_embeddings().weight[SAID:] = 0
    return Target(model)


@cache
def repetitive() -> Target:
    """Its layers say nothing at all, so that each token follows from the one before and the text is soon a circle."""
    model = copy.deepcopy(suited().model)
    return Target(planted(model, exit_layer=0))


@cache
def unsuited() -> Target:
    return Target(hopeless(large_headed()))


@cache
def traces_of(make: Any) -> tuple[Trace, ...]:
    engine = Engine(make())
    settings = GenerationSettings(max_new_tokens=NUM_TOKENS)
    return tuple(
        Trace(str(number), "test", tuple(prompt), engine.generate(prompt, settings).token_ids)
        for number, prompt in enumerate(PROMPTS)
    )


@cache
def fitted(make: Any) -> Mapping[str, Tensor]:
    """What calibration would fit, under the names of folds."""
    traces = traces_of(make)
    heads = fit_exit_heads(make(), traces, [2], strengths=[0.1], rank=4)
    ranks, corpus = fit_vocabulary_ranks(traces, VOCAB_SIZE), fit_corpus(traces)
    return {**heads.scoring, **ranks.scoring, **corpus.scoring}


def bytes_of(module: nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in module.parameters())


@dataclass(frozen=True)
class Outcome:
    """What plans brought, each prompt drafted with arrays of the other prompts."""

    speedup: float
    tokens_per_round: float


def outcome(make: Any, source: dict[str, Any], *, layers: float = 0.0, head: float = 0.0, drafts: int = 4) -> Outcome:
    """Decodes; ``layers`` and ``head`` are what a draft pass reads, as shares of the model's own."""
    target = make()
    layer_bytes = sum(map(bytes_of, target.parts.layers))
    full = layer_bytes + bytes_of(target.parts.head)
    draft_cost = (layers * layer_bytes + head * bytes_of(target.parts.head)) / full
    plan = DraftPlan.model_validate({"source": source, "controller": {"kind": "fixed", "num_draft_tokens": drafts}})
    cost, tokens, rounds = 0.0, 0, 0
    for trace, fold in zip(traces_of(make), folds(traces_of(make)), strict=True):
        engine = Engine(target, plan=plan, arrays=fold_arrays(fitted(make), fold))
        generation = engine.generate(list(trace.prompt_ids), GenerationSettings(max_new_tokens=NUM_TOKENS))
        assert generation.token_ids == trace.output_ids
        stats = generation.stats
        rounds, tokens = rounds + stats.num_rounds, tokens + stats.num_emitted_tokens
        passes = 0 if source["kind"] == "suffix" else stats.num_draft_tokens
        cost += stats.num_rounds + ROW_COST * stats.num_draft_tokens + draft_cost * passes
    return Outcome(tokens / cost, tokens / rounds)


#: Room for all tokens that are said and the few that are only read.
FEW = {"vocab_size": 320}
FEW_SHARE = 320 / VOCAB_SIZE
EXIT = {"kind": "early_exit", "exit_layer": 2}
COPY = {"kind": "quantized", "quantize_head": True, "skip": {"attention": [2, 3], "mlp": [2, 3]}}
#: Half a byte per weight and a scale per block of 64, against four bytes.
FOUR_BITS = 0.14


@pytest.mark.parametrize(
    ("make", "source", "cost"),
    [
        (repetitive, {"kind": "suffix"}, {}),
        (suited, {**EXIT, **FEW}, {"layers": 0.5, "head": FEW_SHARE}),
        (suited, {**EXIT, "head": "linear", "rank": 4, **FEW}, {"layers": 0.51, "head": FEW_SHARE}),
        (suited, {**COPY, **FEW}, {"layers": 0.5 * FOUR_BITS, "head": FEW_SHARE * FOUR_BITS, "drafts": 2}),
    ],
    ids=["suffix", "few tokens", "low rank", "tuned copy"],
)
def test_it_wins_where_it_suits(make: Any, source: dict[str, Any], cost: dict[str, Any]) -> None:
    assert outcome(make, source, **cost).speedup > 1.15


@pytest.mark.parametrize(
    ("source", "cost"),
    [
        ({"kind": "suffix"}, {}),
        ({"kind": "suffix", "corpus": True}, {}),
        ({**EXIT, **FEW}, {"layers": 0.5, "head": FEW_SHARE}),
        ({**EXIT, "head": "linear", "rank": 4, **FEW}, {"layers": 0.51, "head": FEW_SHARE}),
        ({**COPY, **FEW}, {"layers": 0.5 * FOUR_BITS, "head": FEW_SHARE * FOUR_BITS, "drafts": 2}),
    ],
    ids=["suffix", "corpus", "few tokens", "low rank", "tuned copy"],
)
def test_it_is_to_be_switched_off_where_nothing_can_be_guessed(source: dict[str, Any], cost: dict[str, Any]) -> None:
    assert outcome(unsuited, source, **cost).speedup < 1.0


def test_few_tokens_are_what_makes_the_exit_pay() -> None:
    whole = outcome(suited, EXIT, layers=0.5, head=1.0)
    few = outcome(suited, {**EXIT, **FEW}, layers=0.5, head=FEW_SHARE)
    assert few.tokens_per_round == pytest.approx(whole.tokens_per_round), "nothing that is said is left out"
    assert few.speedup > 1.15 * whole.speedup


def test_too_few_tokens_cost_more_than_they_save() -> None:
    few = outcome(suited, {**EXIT, "vocab_size": 32}, layers=0.5, head=1 / 64)
    assert few.speedup < outcome(suited, {**EXIT, **FEW}, layers=0.5, head=FEW_SHARE).speedup
    assert few.speedup < 1.0


def test_other_prompts_answers_help_before_the_text_repeats_itself() -> None:
    alone = outcome(repetitive, {"kind": "suffix"})
    helped = outcome(repetitive, {"kind": "suffix", "corpus": True})
    assert helped.speedup > 1.02 * alone.speedup


def test_what_a_tuned_copy_holds_is_stated() -> None:
    arrays = {**exit_heads(vocab_size=VOCAB_SIZE)}
    held = [
        Engine(suited(), plan=DraftPlan.model_validate({"source": source}), arrays=arrays).extra_bytes
        for source in (COPY, {**COPY, **FEW}, {**COPY, **FEW, "quantize_head": False})
    ]
    layer_bytes = suited().quantized_layers.num_bytes
    assert held[0] - layer_bytes == suited().quantized_head.num_bytes
    assert held[1] - layer_bytes == pytest.approx(FEW_SHARE * suited().quantized_head.num_bytes + 8 * 320)
    assert held[2] - layer_bytes == 320 * (4 * HIDDEN + 8)
