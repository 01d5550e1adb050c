"""A target without a model: its logits are a fixed table of the last token, so that its law can be enumerated.

It has the surface that sources, the verifier and the decoder use, so that these run unchanged, thousands of texts in
seconds. Hidden states are token ids: a verification that resumes from the wrong ones gives the wrong rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec_runtime.layer_skip import LayerSkipSet

VOCAB_SIZE = 6
PROMPT_END = 5
"""A token that stands in prompts and drafts alone: the target never says it, and says 0 after it."""


@dataclass
class Hand:
    """Stands in for the stub that hands hidden states in or out, ``[1, n, 1]``."""

    hidden: Tensor | None = None


@dataclass(frozen=True)
class FakeProgram:
    """What a pass reads: a table, the states that it starts from, and where it leaves its own.

    Attributes:
        table: ``[V, V]`` float32 logits, row = last token.
        into: Holds the states to start from; None to start from the tokens.
        out: Receives the pass's states.
    """

    table: Tensor
    into: Hand | None = None
    out: Hand | None = None


@dataclass
class FakeCache:
    """Remembers which token each position holds.

    Attributes:
        length: Positions that hold committed tokens.
        token_ids: All that was written.
    """

    length: int = 0
    token_ids: list[int] = field(default_factory=list)
    max_positions: int | None = None

    def write(self, token_ids: list[int], start: int) -> None:
        """Writes as a pass does, which may not leave a gap."""
        assert start <= len(self.token_ids), f"a pass at {start} would attend to positions that nothing has written"
        self.token_ids[start : start + len(token_ids)] = token_ids

    def compact(self, slots: Sequence[int], *, start: int) -> None:
        """Moves tokens as the cache moves keys and values."""
        self.token_ids[start : start + len(slots)] = [self.token_ids[slot] for slot in slots]


@dataclass(frozen=True)
class FakeHead:
    """Stands in for a head over a part of the vocabulary."""

    token_ids: tuple[int, ...]
    num_bytes: int = 0


class FakeHeads:
    """Makes them."""

    def over(self, ranked: Sequence[int], vocab_size: int, *, quantize: bool = False) -> FakeHead:
        del quantize
        return FakeHead(tuple(ranked[:vocab_size]))


@dataclass(frozen=True)
class FakePrograms:
    """Makes programs: every way to draft has a table of its own that resembles the target's.

    Attributes:
        target: ``[V, V]`` logits.
        spread: Scale of what sets drafts apart.
    """

    target: Tensor
    spread: float = 1.0

    def full(self) -> FakeProgram:
        return FakeProgram(self.target)

    def exit_at(
        self, exit_layer: int, *, weights: Sequence[Tensor] = (), head: FakeHead | None = None
    ) -> tuple[FakeProgram, Hand]:
        out = Hand()
        return FakeProgram(self._said(head, self._resembling(10 * exit_layer + len(weights))), out=out), out

    def resume_at(self, exit_layer: int) -> tuple[FakeProgram, Hand]:
        del exit_layer
        into = Hand()
        return FakeProgram(self.target, into=into), into

    def without(
        self, skip: LayerSkipSet, *, layers: Sequence[Any] | None = None, head: FakeHead | None = None
    ) -> FakeProgram:
        del skip
        return FakeProgram(self._said(head, self._resembling(2 if layers is None else 3)))

    def _said(self, head: FakeHead | None, table: Tensor) -> Tensor:
        """Leaves out what the head cannot say."""
        if head is None:
            return table
        left_out = torch.ones(table.shape[1], dtype=torch.bool)
        left_out[list(head.token_ids)] = False
        return table.masked_fill(left_out, -torch.inf)

    def _resembling(self, seed: int) -> Tensor:
        noise = torch.randn(self.target.shape, generator=torch.Generator().manual_seed(seed))
        return self.target.nan_to_num(neginf=-1.5) + self.spread * noise


@dataclass(frozen=True)
class FakeCopies:
    """Stands in for four-bit modules."""

    modules: tuple[Any, ...] = (None, None)
    num_bytes: int = 0


class FakeTarget:
    """A Markov chain that passes for a `Target`.

    Args:
        seed: Of its table.
        spread: See `FakePrograms`.
    """

    num_layers = 2
    max_positions = None
    takes_trees = True
    device = torch.device("cpu")
    dtype = torch.float32
    layer_bytes = 0
    quantized_layers = FakeCopies()
    quantized_head = FakeCopies()
    reduced_heads = FakeHeads()

    def __init__(self, *, seed: int = 2, spread: float = 0.8) -> None:
        table = 1.3 * torch.randn(VOCAB_SIZE, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed))
        table[:, PROMPT_END] = -torch.inf
        table[PROMPT_END, 1:] = -torch.inf
        self.table = table
        self.programs = FakePrograms(table, spread)
        self.full = self.programs.full()

    def new_cache(self, capacity: int = 256) -> FakeCache:
        del capacity
        return FakeCache()

    def logits(
        self,
        token_ids: Tensor,
        cache: FakeCache,
        *,
        start: int,
        program: FakeProgram | None = None,
        keep: int | None = None,
        mask: object = None,
        tree: object = None,
    ) -> Tensor:
        del tree  # a row of the table needs to see no other row
        assert mask is None
        rows = self._rows(token_ids, cache, start, program or self.full)
        return rows if keep is None else rows[-keep:]

    def advance(
        self, token_ids: Tensor, cache: FakeCache, *, start: int, program: FakeProgram, tree: object = None
    ) -> None:
        del tree
        self._rows(token_ids, cache, start, program)

    def _rows(self, token_ids: Tensor, cache: FakeCache, start: int, program: FakeProgram) -> Tensor:
        cache.write(token_ids.tolist(), start)
        states = token_ids
        if program.into is not None:
            assert program.into.hidden is not None
            states = program.into.hidden[0, :, 0]
            assert len(states) == len(token_ids), "a resumed pass needs one state per token"
        if program.out is not None:
            program.out.hidden = states[None, :, None]
        return program.table[states]
