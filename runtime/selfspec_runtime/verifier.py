"""Runs the target over a draft: one full pass over the last committed token and every draft token.

A chain's slots in the cache are its positions. Side branches follow it in slots of their own, at the positions that
their texts give them, and each row sees its own path only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from selfspec_runtime.tree.token_tree import PlacedTree

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec_runtime.cache import KVCache
    from selfspec_runtime.drafts.draft import Draft, ExactPrefix
    from selfspec_runtime.program import LayerProgram
    from selfspec_runtime.sequence import Sequence
    from selfspec_runtime.stubs import HandIn, HandOut
    from selfspec_runtime.target import Target


#: Weights of the first layers, in bytes, from which on running them for fewer rows is worth a pass of its own. Weights
#: are read once in either way; on a CPU a pass costs about 0.1 ms, and below this a few more rows cost less.
SMALL_PREFIX_BYTES = 16 * 2**20


class Verifier:
    """Computes the target's logits for a block.

    Where the draft was an exact prefix of the target, the pass resumes from its hidden states: the first
    layers run only for the last token of the chain and for the branches, which never went through them. Where these
    layers are small, the whole block runs through all layers instead.

    Args:
        target: The model.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self._prefixes: dict[int, tuple[LayerProgram, HandOut]] = {}
        self._resumptions: dict[int, tuple[LayerProgram, HandIn]] = {}

    def verify(self, sequence: Sequence, draft: Draft, cache: KVCache) -> Tensor:
        """The target's logits after each token of the block.

        Args:
            sequence: Committed tokens; the last one is not in the cache yet.
            draft: A chain of draft tokens, perhaps with side branches.
            cache: The shared cache.

        Returns:
            ``[1 + g + b, vocab]`` for a chain of ``g`` tokens and ``b`` side branches: row ``i < g`` decides chain
            token ``i``, row ``g`` what follows a chain that stands whole, and row ``1 + g + j`` what follows branch
            ``j``.
        """
        start = sequence.last_position
        last = sequence.tensor()[-1:]
        drafted = torch.tensor(draft.node_ids, dtype=torch.long, device=last.device)
        block = torch.cat([last, drafted])
        tree = PlacedTree(draft.tree, start) if draft.branches else None
        if draft.prefix is None or self._is_small(draft.prefix):
            return self.target.logits(block, cache, start=start, tree=tree)
        return self._resume(block, draft.prefix, cache, tree, start=start)

    def _is_small(self, prefix: ExactPrefix) -> bool:
        return prefix.exit_layer * self.target.layer_bytes < SMALL_PREFIX_BYTES

    def _resume(
        self, block: Tensor, prefix: ExactPrefix, cache: KVCache, tree: PlacedTree | None, *, start: int
    ) -> Tensor:
        missing = block[prefix.hidden.shape[1] :]
        hidden = prefix.hidden
        if len(missing):
            program, out = self._prefix(prefix.exit_layer)
            first = start + prefix.hidden.shape[1]
            self.target.advance(missing, cache, start=first, program=program, tree=tree)
            assert out.hidden is not None
            hidden = torch.cat([hidden, out.hidden], dim=1)
        program, into = self._resumption(prefix.exit_layer)
        into.hidden = hidden
        return self.target.logits(block, cache, start=start, program=program, tree=tree)

    def _prefix(self, exit_layer: int) -> tuple[LayerProgram, HandOut]:
        if exit_layer not in self._prefixes:
            self._prefixes[exit_layer] = self.target.programs.exit_at(exit_layer)
        return self._prefixes[exit_layer]

    def _resumption(self, exit_layer: int) -> tuple[LayerProgram, HandIn]:
        if exit_layer not in self._resumptions:
            self._resumptions[exit_layer] = self.target.programs.resume_at(exit_layer)
        return self._resumptions[exit_layer]
