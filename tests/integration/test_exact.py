"""On a CPU a verification has the very bits of single steps, in bfloat16 too: tokens and logits."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from tests.support.tiny_models import prompt_ids, tiny_model, tiny_target
from torch import Tensor

from selfspec_runtime import exactness
from selfspec_runtime.controllers.fixed import FixedSpec
from selfspec_runtime.decoder import RunRecord
from selfspec_runtime.drafts.draft import Draft
from selfspec_runtime.drafts.early_exit import EarlyExitSpec
from selfspec_runtime.drafts.ngram import NgramSpec
from selfspec_runtime.drafts.quantized import QuantizedSpec
from selfspec_runtime.drafts.skipped import LayerSkipSpec
from selfspec_runtime.engine import Engine
from selfspec_runtime.errors import UsageError
from selfspec_runtime.exactness import differences, require_exact
from selfspec_runtime.layer_skip import LayerSkipSet
from selfspec_runtime.native.library import native_status
from selfspec_runtime.packing import pack_model
from selfspec_runtime.plan import PLAIN, DraftPlan
from selfspec_runtime.processors import Processors
from selfspec_runtime.rules import GreedyRule
from selfspec_runtime.sampling import SamplingSettings
from selfspec_runtime.sequence import Sequence
from selfspec_runtime.stopping import StopConditions, Stopper
from selfspec_runtime.target import Target

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
SOURCES = (
    EarlyExitSpec(exit_layer=2),
    LayerSkipSpec(skip=LayerSkipSet(mlp=(1,))),
    QuantizedSpec(),
    NgramSpec(),
)
DTYPES = (torch.float32, torch.bfloat16)


class Recording(GreedyRule):
    """Keeps the logits that each committed token was taken from."""

    def __init__(self) -> None:
        super().__init__(SamplingSettings(), Processors())
        self.rows: list[Tensor] = []

    def decide(self, draft: Draft, logits: Tensor, sequence: Sequence):  # type: ignore[no-untyped-def]
        verdict = super().decide(draft, logits, sequence)
        self.rows.extend(logits[: verdict.num_accepted + 1])
        return verdict


def packed(family: str, dtype: torch.dtype) -> Target:
    model = copy.deepcopy(tiny_model(family)).to(dtype)
    pack_model(model)
    return Target(model)


def decoded(target: Target, plan: DraftPlan, *, num_tokens: int = 60) -> tuple[list[int], Tensor, RunRecord]:
    engine = Engine(target, None, plan)
    sequence, rule, record = Sequence(prompt_ids(20), device=target.device), Recording(), RunRecord()
    stopper = Stopper(StopConditions(max_new_tokens=num_tokens), None)
    for _ in engine.decoder.run(sequence, target.new_cache(), rule=rule, stopper=stopper, record=record):
        pass
    tokens = sequence.tensor().tolist()[20:]
    return tokens, torch.stack(rule.rows)[: len(tokens)], record


@pytest.mark.skipif(native_status().kernels is None, reason="only the own kernels promise it")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_and_logits_are_bit_identical_to_plain_decoding(family: str, dtype: torch.dtype) -> None:
    target = packed(family, dtype)
    tokens, logits, _ = decoded(target, PLAIN)
    for source in SOURCES:
        plan = DraftPlan.model_validate({"source": source, "controller": FixedSpec(num_draft_tokens=4)})
        require_exact(Engine(target, None, plan))
        found, rows, record = decoded(target, plan)
        assert found == tokens, source.describe()
        assert torch.equal(rows, logits), source.describe()
        assert record.stats.num_draft_tokens > 0


def test_a_model_whose_rows_depend_on_each_other_is_refused() -> None:
    target = packed("llama", torch.float32)

    class Blurred(torch.nn.Module):
        def __init__(self, layer: torch.nn.Module) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, hidden_states: Tensor, *args: object, **kwargs: object) -> object:
            out = self.layer(hidden_states, *args, **kwargs)
            return out + 1e-6 * out.shape[1]

    layers = target.parts.layers
    layers[1] = Blurred(layers[1])
    blurred = Target(target.model)
    assert all(difference > 0 for _, difference in differences(blurred, start=24, widths=(2, 5)))
    plan = DraftPlan(source=NgramSpec(), controller=FixedSpec(num_draft_tokens=4))
    with pytest.raises(UsageError, match=r"block of 2 rows differs.*float32"):
        require_exact(Engine(blurred, None, plan))


class Scripted:
    """A target in whose blocks of some widths every row is off by a little."""

    def __init__(self, wrong_widths: set[int], *, max_positions: int | None = None) -> None:
        self.device, self.dtype, self.max_positions = torch.device("cpu"), torch.float32, max_positions
        self.model = tiny_model("llama")
        self._wrong, self.blocks = wrong_widths, []

    def new_cache(self, *, capacity: int) -> None:
        assert self.max_positions is None or capacity <= self.max_positions

    def logits(self, ids: Tensor, cache: None, *, start: int, keep: int | None = None) -> Tensor:
        del cache, keep
        assert len(ids) > 0
        if start > 0 and len(ids) > 1:
            self.blocks.append((start, len(ids)))
        rows = torch.stack([ids.float(), torch.full((len(ids),), -torch.inf)], dim=1)
        return rows + 0.5 * (len(ids) in self._wrong)


def exact_with(target: Scripted, num_draft_tokens: int) -> None:
    plan = DraftPlan(source=NgramSpec(), controller=FixedSpec(num_draft_tokens=num_draft_tokens))
    require_exact(SimpleNamespace(target=target, plan=plan))  # type: ignore[arg-type]


def test_every_width_up_to_the_widest_is_compared() -> None:
    target = Scripted(set())
    exact_with(target, 4)
    assert target.blocks == [(24, 2), (24, 3), (24, 4), (24, 5), (40, 5)]
    with pytest.raises(UsageError, match=r"block of 3 rows differs .* up to 0.5 "):
        exact_with(Scripted({3}), 4)


@pytest.mark.parametrize("context", [2, 3, 5, 6, 12, 30, 44])
def test_a_short_context_is_compared_where_blocks_fit(context: int) -> None:
    target = Scripted(set(), max_positions=context)
    exact_with(target, 7)
    widest = min(8, context - 1)
    assert len({start for start, _ in target.blocks}) == min(4 * (widest > 1), context - widest)
    assert max((width for _, width in target.blocks), default=1) == widest
    with pytest.raises(UsageError, match="block of") if widest > 1 else nullcontext():
        exact_with(Scripted({widest}, max_positions=context), 7)


def test_plain_decoding_is_always_exact() -> None:
    require_exact(Engine(packed("llama", torch.bfloat16), None, PLAIN))


@pytest.mark.parametrize(("dtype", "is_advised"), [(torch.float32, False), (torch.bfloat16, True)])
def test_only_what_is_not_float32_yet_is_advised_to_be(dtype: torch.dtype, is_advised: bool) -> None:
    message = str(exactness._inexact(SimpleNamespace(model=object(), dtype=dtype), 4, 0.5))
    assert ("use float32" in message) == is_advised
    assert "Leave exact out," in message


def test_side_branches_are_refused() -> None:
    chain = {"kind": "early_exit", "exit_layer": 2}
    plan = DraftPlan.model_validate({"source": {"kind": "tree", "chain": chain, "max_branches": 2}})
    with pytest.raises(UsageError, match="side branches stand in other slots"):
        require_exact(Engine(tiny_target("llama"), plan=plan))
