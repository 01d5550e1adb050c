"""What is recorded: drafting, verification and acceptance as functions of tensors that stay where they are.

No function here reads a tensor on the host, and none takes a length as a number. A number that is fixed in a
step (how many drafts, how wide a block, how far attention reads) is part of what is recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from selfspec_runtime.draft_head import ReducedHead
from selfspec_runtime.executors.state import BROKEN, FIRST_DRAFTED, NUM_ACCEPTED, TOKEN
from selfspec_runtime.masks import causal_mask, masks_by_window
from selfspec_runtime.pass_input import PassInput
from selfspec_runtime.stock_pass import StockPass

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec_runtime.executors.device_cache import DeviceCache
    from selfspec_runtime.executors.device_rules import DeviceRule
    from selfspec_runtime.executors.state import DeviceState
    from selfspec_runtime.program import LayerProgram
    from selfspec_runtime.stubs import HandIn, HandOut
    from selfspec_runtime.target import Target


@dataclass(frozen=True)
class DraftProgram:
    """What a draft pass runs.

    Attributes:
        program: One module per layer.
        out: The stub that holds the hidden states at the exit, where verification may resume from them.
        exit_layer: The layer of the exit, or None.
    """

    program: LayerProgram
    out: HandOut | None = None
    exit_layer: int | None = None


class RoundSteps:
    """The steps of a round over one extent of the cache.

    Args:
        target: The model.
        state: Where the generation stands.
        cache: The shared cache.
        rule: Draws and decides.
        wants_confidence: Whether the controller asks how sure the draft is.
    """

    def __init__(
        self, target: Target, state: DeviceState, cache: DeviceCache, rule: DeviceRule, *, wants_confidence: bool
    ) -> None:
        self.target = target
        self.state = state
        self.cache = cache
        self.rule = rule
        self.wants_confidence = wants_confidence
        self._passes = StockPass(target.parts)
        state.reserve_laws(rule.law_parts(state.sizes.vocab_size))
        self._prefixes: dict[int, tuple[LayerProgram, HandOut]] = {}
        self._resumptions: dict[int, tuple[LayerProgram, HandIn]] = {}

    @torch.no_grad()
    def start(self) -> None:
        """Begins a round: nothing is drafted yet."""
        self.state.cursor.zero_()

    @torch.no_grad()
    def draft(self, draft: DraftProgram) -> None:
        """Drafts the next token of the window, and moves the cursor on."""
        state, rule = self.state, self.rule
        token = state.window.index_select(0, state.cursor)
        logits = self.logits(token, state.length + state.cursor, draft.program, keep=1)
        if draft.out is not None:
            state.hidden.index_copy_(1, state.cursor, _kept(draft.out, state))
        next_token, law = rule.draw(logits, state.length + 1 + state.cursor, round_start=state.length + 1)
        for kept, part in zip(state.laws[: len(law)], law, strict=True):
            kept.index_copy_(0, state.cursor, part)
        self._note(next_token, logits)
        state.cursor.add_(1)
        state.window.index_copy_(0, state.cursor, next_token)

    @torch.no_grad()
    def verify(self, num_drafted: int, *, exit_layer: int | None = None, drawn: bool = True) -> None:
        """Verifies the window, decides, and moves the state behind what was accepted.

        Args:
            num_drafted: Draft tokens in the window.
            exit_layer: Where the drafts' hidden states were kept, or None to run every layer.
            drawn: Whether the tokens were drawn from the kept laws, where the rule keeps any.
        """
        state = self.state
        logits = self._block_logits(num_drafted, exit_layer)
        laws = state.laws if drawn else ()
        verdict = self.rule.decide(state.window[1 : num_drafted + 1], laws, logits, state.length + 1)
        state.outcome[NUM_ACCEPTED : NUM_ACCEPTED + 1].copy_(verdict.num_accepted)
        state.outcome[TOKEN : TOKEN + 1].copy_(verdict.token)
        state.outcome[BROKEN : BROKEN + 1].copy_(verdict.broken)
        state.window[:1].copy_(verdict.token)
        state.length.add_(verdict.num_accepted + 1)

    def drafts(self, draft: DraftProgram, count: int) -> None:
        """Drafts some tokens one after another."""
        for _ in range(count):
            self.draft(draft)

    def whole(self, draft: DraftProgram, num_drafts: int) -> None:
        """A whole round of fixed length."""
        self.start()
        self.drafts(draft, num_drafts)
        self.verify(num_drafts, exit_layer=draft.exit_layer)

    def logits(
        self, token_ids: Tensor, positions: Tensor, program: LayerProgram | None = None, *, keep: int | None = None
    ) -> Tensor:
        """One pass.

        Args:
            token_ids: ``[n]`` int64.
            positions: ``[n]`` int64, where they stand; keys and values are written there.
            program: What runs at each layer; everything by default.
            keep: Number of last rows whose logits are wanted; all by default.

        Returns:
            ``[keep, vocab]``.
        """
        program = program or self.target.full
        logits = self._passes.logits(self._given(token_ids, positions), program, keep=keep)
        return program.head.widened(logits) if isinstance(program.head, ReducedHead) else logits

    def _block_logits(self, num_drafted: int, exit_layer: int | None) -> Tensor:
        state = self.state
        width = num_drafted + 1
        positions = state.length + torch.arange(width, device=state.length.device)
        if exit_layer is None or num_drafted == 0:
            return self.logits(state.window[:width], positions)
        self._complete_prefix(exit_layer, positions[num_drafted:], num_drafted)
        program, into = self._resumption(exit_layer)
        into.hidden = state.hidden[:, :width]
        return self.logits(state.window[:width], positions, program)

    def _complete_prefix(self, exit_layer: int, position: Tensor, num_drafted: int) -> None:
        """Runs the first layers over the last draft token, which never went through them."""
        state = self.state
        program, out = self._prefix(exit_layer)
        self._passes.advance(self._given(state.window[num_drafted : num_drafted + 1], position), program)
        state.hidden[:, num_drafted : num_drafted + 1].copy_(_kept(out, state))

    def _given(self, token_ids: Tensor, positions: Tensor) -> PassInput:
        self.cache.positions = positions
        columns = torch.arange(self.cache.extent, device=positions.device)
        mask = masks_by_window(
            self.target.parts, lambda window: causal_mask(positions, columns, window), dtype=self.target.dtype
        )
        return PassInput(token_ids, self.cache, 0, mask=mask, positions=positions)

    def _note(self, token: Tensor, logits: Tensor) -> None:
        state = self.state
        state.outcome.index_copy_(0, state.cursor + FIRST_DRAFTED, token.double())
        if self.wants_confidence:
            confidence = logits.float().softmax(dim=-1).amax(dim=-1)
            state.outcome.index_copy_(0, state.cursor + state.first_confidence, confidence.double())

    def _prefix(self, exit_layer: int) -> tuple[LayerProgram, HandOut]:
        if exit_layer not in self._prefixes:
            self._prefixes[exit_layer] = self.target.programs.exit_at(exit_layer)
        return self._prefixes[exit_layer]

    def _resumption(self, exit_layer: int) -> tuple[LayerProgram, HandIn]:
        if exit_layer not in self._resumptions:
            self._resumptions[exit_layer] = self.target.programs.resume_at(exit_layer)
        return self._resumptions[exit_layer]


def _kept(out: HandOut, state: DeviceState) -> Tensor:
    hidden = out.hidden
    assert hidden is not None, "the pass did not reach its exit"
    if hidden.dtype != state.hidden.dtype:
        message = f"hidden states are {hidden.dtype} at the exit, and the model is {state.hidden.dtype}"
        raise TypeError(message)
    return hidden
