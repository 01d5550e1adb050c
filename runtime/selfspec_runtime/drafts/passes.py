"""Drafting by passes of the model itself under another layer program.

Early exit, skip sets and quantised copies differ only in the program; this is their common loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from selfspec_runtime.drafts.draft import Draft
from selfspec_runtime.drafts.source import DraftSource, RoundContext

if TYPE_CHECKING:
    from selfspec_runtime.program import LayerProgram
    from selfspec_runtime.target import Target


class PassSource(DraftSource):
    """Drafts one token per pass of a layer program over the shared cache.

    The draft attends to the target's own keys and values for everything committed; its own are written only
    inside the block, where verification overwrites them.

    Args:
        target: The model.
        program: What runs at each layer.
        origin: Name of the kind of source, for the record.
        extra_bytes: Memory held by weights that are not the model's own.
    """

    def __init__(self, target: Target, program: LayerProgram, *, origin: str, extra_bytes: int = 0) -> None:
        self.target = target
        self.program = program
        self.origin = origin
        self._extra_bytes = extra_bytes

    @property
    def extra_bytes(self) -> int:
        """Bytes of copied or fitted weights."""
        return self._extra_bytes

    def propose(self, context: RoundContext) -> Draft:
        """Runs one pass per token until the budget is spent or the controller has enough."""
        draft = Draft(origin=self.origin)
        sequence, controller, rule = context.sequence, context.controller, context.rule
        token, position = sequence.tensor()[-1:], sequence.last_position
        while len(draft) < context.budget:
            logits = self.target.logits(token, context.cache, start=position, program=self.program, keep=1)
            draft.num_passes += 1
            self._after_pass()
            choice = rule.choose(logits, sequence, draft.token_ids, wants_confidence=controller.needs_confidence)
            draft.append(choice.token_id, choice.probs)
            if not controller.wants_more(len(draft), choice.confidence):
                break
            token, position = choice.token, position + 1
        return self._finished(draft)

    def _after_pass(self) -> None:
        """Hook for sources that keep something of each pass."""

    def _finished(self, draft: Draft) -> Draft:
        """Hook for sources that add something to the draft."""
        return draft
