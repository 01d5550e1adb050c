"""The steps of a round on tiny models, on meta tensors or on a CPU, as an executor would set them up."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from tests.support.tiny_models import VOCAB_SIZE, attention_of, prompt_ids, tiny_config
from transformers import AutoModelForCausalLM

from selfspec_runtime.attention import register_attention
from selfspec_runtime.executors.device_cache import DeviceCache
from selfspec_runtime.executors.device_rules import device_rule
from selfspec_runtime.executors.state import DeviceState, StateSizes
from selfspec_runtime.executors.steps import DraftProgram, RoundSteps
from selfspec_runtime.layer_skip import LayerSkipSet
from selfspec_runtime.sampling import SamplingSettings
from selfspec_runtime.sequence import Sequence
from selfspec_runtime.target import Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from transformers import PreTrainedModel

    from selfspec_runtime.cache import KVCache
    from selfspec_runtime.executors.device_rules import DeviceRule

CAPACITY = 96
EXTENT = 64
MAX_DRAFTS = 16
SAMPLING = {
    "greedy": SamplingSettings(),
    "rejection": SamplingSettings(temperature=0.8, top_k=20, top_p=0.95, min_p=0.01, seed=2**40 + 5),
    "match": SamplingSettings(temperature=0.8, top_p=0.9, seed=2**40 + 5, mode="match"),
}
#: Loops over experts, chosen by what the tokens are, cannot be captured; one batched product can.
EXPERT_FAMILIES = ("mixtral", "qwen3_moe", "gpt_oss")
#: Whatever an executor may record, by name.
STEPS: dict[str, Callable[[RoundSteps], None]] = {
    "plain": lambda steps: steps.verify(0),
    "exit_round": lambda steps: steps.whole(exit_draft(steps.target), 2),
    "skip_round": lambda steps: steps.whole(skip_draft(steps.target), 2),
    "verification": lambda steps: steps.verify(4, drawn=False),
    "resumed_verification": lambda steps: steps.verify(4, exit_layer=2),
    "more_drafts": lambda steps: steps.drafts(exit_draft(steps.target), 2),
}


@dataclass(frozen=True)
class StepWorld:
    """A model with its buffers.

    Attributes:
        target: The model.
        state: Static buffers.
        cache: The shared cache, allocated.
    """

    target: Target
    state: DeviceState
    cache: KVCache

    def steps(
        self,
        *,
        extent: int = EXTENT,
        sampling: SamplingSettings | None = None,
        confidence: bool = False,
        make_rule: Callable[[SamplingSettings, Tensor], DeviceRule] = device_rule,
    ) -> RoundSteps:
        """Steps over an extent of the cache; all that draw in one world must have their rule from one maker."""
        rule = make_rule(sampling or SamplingSettings(), self.state.key)
        keys, values = self.cache.storage()
        cache = DeviceCache(keys, values, extent=extent)
        return RoundSteps(self.target, self.state, cache, rule, wants_confidence=confidence)

    def write(self, length: int, *, seed: int = 0) -> Sequence:
        """Puts a text of so many tokens into the cache, and the state behind it."""
        sequence = Sequence(prompt_ids(length + 1, seed=seed), device=self.target.device)
        self.target.logits(sequence.tensor()[:-1], self.cache, start=0, keep=1)
        self.cache.length = length
        self.state.forget()
        self.state.place(sequence, seed=2**40 + 5)
        self.state.cursor.zero_()
        self.state.window[1:].copy_(torch.tensor(prompt_ids(MAX_DRAFTS, seed=seed + 1)))
        return sequence


def step_world(model: PreTrainedModel) -> StepWorld:
    """Buffers for a model."""
    target = Target(model)
    cache = target.new_cache(CAPACITY)
    target.logits(torch.zeros(2, dtype=torch.long, device=target.device), cache, start=0, keep=1)
    hidden_size = model.get_input_embeddings().weight.shape[1]
    state = DeviceState(StateSizes(MAX_DRAFTS, hidden_size, VOCAB_SIZE), dtype=target.dtype, device=target.device)
    return StepWorld(target, state, cache)


@cache
def meta_world(family: str, attention: str | None = None, experts: str | None = "batched_mm") -> StepWorld:
    """A model without data: whatever needs a value fails."""
    return step_world(meta_model(tiny_config(family), attention=attention or attention_of(family), experts=experts))


def meta_model(config: Any, *, attention: str, experts: str | None = None) -> PreTrainedModel:
    """The model of a configuration on meta tensors."""
    register_attention()
    options = {} if experts is None else {"experts_implementation": experts}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention, **options)
    return model.eval().requires_grad_(False)


def exit_draft(target: Target) -> DraftProgram:
    """Drafting with the first two layers."""
    program, out = target.programs.exit_at(2)
    return DraftProgram(program, out, 2)


def skip_draft(target: Target) -> DraftProgram:
    """Drafting without two layers, or without two sub-layers where the family has modules for them."""
    whole = target.parts.mlp_name is None
    skip = LayerSkipSet.whole([1, 2]) if whole else LayerSkipSet(attention=frozenset({1}), mlp=frozenset({2}))
    return DraftProgram(target.programs.without(skip))
