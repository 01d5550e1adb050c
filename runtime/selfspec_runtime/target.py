"""The target: a model that can run any layer program over one shared cache."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import torch

from selfspec_runtime.architecture import find_parts
from selfspec_runtime.cache import KVCache
from selfspec_runtime.draft_head import ReducedHead, ReducedHeads
from selfspec_runtime.executors.arena import Arena
from selfspec_runtime.generation_defaults import context_tokens
from selfspec_runtime.lean_pass import LeanPass, runs_lean
from selfspec_runtime.memory import weight_bytes
from selfspec_runtime.pass_input import PassInput
from selfspec_runtime.program import LayerProgram, OutputLengths, ProgramBuilder
from selfspec_runtime.quantization import QuantizedModules, quantized_modules
from selfspec_runtime.stock_pass import StockPass
from selfspec_runtime.stubs import Observed, shallow_twin

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from selfspec_runtime.masks import Mask
    from selfspec_runtime.pass_input import PassCache
    from selfspec_runtime.tree.token_tree import PlacedTree


class Target:
    """A causal language model as selfspec sees it.

    Args:
        model: The model, in evaluation mode. It is never changed: a pass that exchanges its layers for a program's
            puts them back.

    Attributes:
        parts: Where things are in the model.
        passes: How a pass is run: by the model's own forward, or by the few operations of a rebuilt model.
        programs: Makes layer programs for it.
        full: The program that runs everything.
        max_positions: Context length, or None if the model has no limit.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.parts = find_parts(model)
        self.passes = LeanPass(self.parts) if runs_lean(self.parts) else StockPass(self.parts)
        self.programs = ProgramBuilder(self.parts, _observed_outputs(self))
        self.full = self.programs.full()

    @property
    def model(self) -> PreTrainedModel:
        """The wrapped model."""
        return self.parts.model

    @property
    def device(self) -> torch.device:
        """Device of the embeddings, where token ids go."""
        device: torch.device = self.parts.model.get_input_embeddings().weight.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the hidden states."""
        dtype: torch.dtype = self.parts.model.dtype
        return dtype

    @property
    def num_layers(self) -> int:
        """How many decoder layers there are."""
        return self.parts.num_layers

    @cached_property
    def max_positions(self) -> int | None:
        """Context length, or None if the model has no limit."""
        return context_tokens(self.parts.model.config)

    @property
    def takes_trees(self) -> bool:
        """Whether a token's position may differ from its slot in the cache: nothing in the model counts slots."""
        return self.parts.tied_to_slots is None

    @cached_property
    def layer_bytes(self) -> int:
        """Weights of the first decoder layer; those of the others are like it."""
        return weight_bytes(self.parts.own_layers[0])

    @cached_property
    def arena(self) -> Arena:
        """Storage of the cache for steps that are recorded, shared by all that decode with this model."""
        return Arena()

    @cached_property
    def quantized_layers(self) -> QuantizedModules:
        """An NF4 copy of the layers, made when first asked for and packed once."""
        return quantized_modules(self.parts.own_layers, dtype=self.dtype, device=self.device)

    @cached_property
    def quantized_head(self) -> QuantizedModules:
        """An NF4 copy of the head, made when first asked for."""
        heads = () if self.parts.head is None else (self.parts.head,)
        return quantized_modules(heads, dtype=self.dtype, device=self.device)

    @cached_property
    def reduced_heads(self) -> ReducedHeads:
        """Makes heads over a part of the vocabulary."""
        return ReducedHeads(self.parts, dtype=self.dtype, device=self.device)

    def new_cache(self, capacity: int = 256) -> KVCache:
        """An empty cache for this model."""
        return KVCache(self.num_layers, capacity=capacity, max_positions=self.max_positions)

    @torch.no_grad()
    def logits(
        self,
        token_ids: Tensor,
        cache: PassCache,
        *,
        start: int,
        program: LayerProgram | None = None,
        keep: int | None = None,
        mask: Mask | None = None,
        tree: PlacedTree | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Runs one pass.

        Args:
            token_ids: ``[n]`` int64, on the model's device.
            cache: The shared cache; positions ``start .. start + n - 1`` are written. Or whatever stands in for one.
            start: Position of the first token; with a tree its slot.
            program: What runs at each layer; everything by default.
            keep: Number of last rows whose logits are wanted; all by default.
            mask: Another mask than the causal one.
            tree: The tree of whose rows these tokens are some, in the order of their slots; gives positions and mask.
            positions: Other positions than ``start, start + 1, ...``, int64 ``[n]``.

        Returns:
            ``[keep, vocab]`` in the model's dtype; -inf for tokens that the program's head leaves out.

        Raises:
            CapacityError: The positions lie beyond the context.
        """
        program = program or self.full
        given = PassInput(token_ids, cache, start, mask, tree, positions)
        cache.begin(start, given.num_tokens)
        logits = self.passes.logits(given, program, keep=keep)
        return program.head.widened(logits) if isinstance(program.head, ReducedHead) else logits

    @torch.no_grad()
    def advance(
        self,
        token_ids: Tensor,
        cache: PassCache,
        *,
        start: int,
        program: LayerProgram,
        mask: Mask | None = None,
        tree: PlacedTree | None = None,
        positions: Tensor | None = None,
    ) -> None:
        """Runs one pass without the head, for what it writes into the cache and the program's stubs.

        Args:
            token_ids: ``[n]`` int64.
            cache: A cache, or whatever stands in for one.
            start: Position of the first token; with a tree its slot.
            program: What runs at each layer.
            mask: Another mask than the causal one.
            tree: As for :meth:`logits`.
            positions: As for :meth:`logits`.
        """
        given = PassInput(token_ids, cache, start, mask, tree, positions)
        cache.begin(start, given.num_tokens)
        self.passes.advance(given, program)


def _observed_outputs(target: Target) -> OutputLengths:
    """What a layer and its sub-layers return, seen in one single-token pass over a twin of the first layer."""
    parts = target.parts
    twin = shallow_twin(parts.own_layers[0])
    names = {"attention": parts.attention_name, "mlp": parts.mlp_name}
    observed = {role: Observed(getattr(twin, name)) for role, name in names.items() if name is not None}
    twin._modules.update({str(names[role]): module for role, module in observed.items()})
    observed["layer"] = Observed(twin)
    program = LayerProgram((observed["layer"], *parts.own_layers[1:]))
    token = torch.zeros(1, dtype=torch.long, device=target.device)
    target.advance(token, target.new_cache(capacity=8), start=0, program=program)
    return OutputLengths(**{role: module.output_length for role, module in observed.items()})
