"""Skip sets by dynamic programming over hidden states (CLaSp, Chen et al. 2505.24196; KnapSpec, Cha et al. 2602.20217).

For every number of units saved, the state after each layer that best resembles the full model's is kept, and what it
was made from. All numbers are solved at once, as rows of one pass: a branch is a row, all branches of a token stand
at its position, and each sees the committed keys and values and itself. Branch 0 saves nothing: it is the full model,
by which the others are judged. So the programme costs one pass over the branches, and needs nothing from before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn import functional

from selfspec_runtime.layer_skip import LayerSkipSet
from selfspec_runtime.program import LayerProgram
from selfspec_runtime.scratch import replay, require_positions
from selfspec_runtime.stubs import LayerStub

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from selfspec_runtime.cache import KVCache
    from selfspec_runtime.program import ProgramBuilder
    from selfspec_runtime.target import Target


class Choice(NamedTuple):
    """What may be done with a layer.

    Attributes:
        skips_attention: Whether its attention is left out.
        skips_mlp: Whether its MLP is left out.
        saved: Units saved by it.
    """

    skips_attention: bool
    skips_mlp: bool
    saved: int

    def skip_set(self, layer: int) -> LayerSkipSet:
        """The choice as a set of sub-layers."""
        chosen = frozenset({layer})
        return LayerSkipSet(
            attention=chosen if self.skips_attention else frozenset(), mlp=chosen if self.skips_mlp else frozenset()
        )


def whole_layers() -> tuple[Choice, ...]:
    """A layer is run, or left out for one unit (CLaSp)."""
    return (Choice(False, False, 0), Choice(True, True, 1))


def sub_layers(attention_units: int, mlp_units: int) -> tuple[Choice, ...]:
    """Attention and MLP are left out apart, each for the units that it costs (KnapSpec)."""
    return (
        Choice(False, False, 0),
        Choice(True, False, attention_units),
        Choice(False, True, mlp_units),
        Choice(True, True, attention_units + mlp_units),
    )


@dataclass(frozen=True)
class SkipFront:
    """The best set found for each number of units saved.

    Attributes:
        skips: For 0, 1, ... units the set that saves exactly so many, or None where none does.
        cosines: How much its last hidden state resembles the full model's, the mean over tokens; 0 where there is none.
    """

    skips: tuple[LayerSkipSet | None, ...]
    cosines: tuple[float, ...]


class SkipProgramme:
    """The dynamic programme of one model, to be solved anew for other tokens.

    Args:
        target: The model.
        num_units: Most units to save.
        choices: What may be done with a layer, running it first.
        kept_layers: Layers that are always run.
        least_cosine: States that resemble the full model's less are given up.

    Raises:
        PlanError: The family takes no positions, or has no such sub-module to leave out.
    """

    def __init__(
        self,
        target: Target,
        num_units: int,
        choices: Sequence[Choice],
        *,
        kept_layers: frozenset[int] = frozenset(),
        least_cosine: float = -1.0,
    ) -> None:
        require_positions(target)
        self.target = target
        self.num_units = num_units
        self.choices = tuple(choices)
        self.least_cosine = least_cosine
        self._stubs = tuple(
            BranchedLayer(layer, target.programs, self._allowed(index, kept_layers), index=index)
            for index, layer in enumerate(target.full.modules)
        )

    @property
    def num_rows(self) -> int:
        """Rows of the pass for each token."""
        return self.num_units + 1

    def solve(self, token_ids: Tensor, cache: KVCache, *, positions: Tensor) -> SkipFront:
        """Runs the pass and reads the sets back.

        Args:
            token_ids: int64 ``[r]``: the tokens whose hidden states are compared.
            cache: Holds the target's keys and values before each of them; scratch room for the rows is needed.
            positions: int64 ``[r]``, the place of each.
        """
        table = _Table(self.num_rows, len(token_ids), self.least_cosine)
        for stub in self._stubs:
            stub.table = table
        try:
            replay(
                self.target,
                token_ids.repeat(self.num_rows),
                cache,
                positions=positions.repeat(self.num_rows),
                program=LayerProgram(self._stubs),
            )
        finally:
            for stub in self._stubs:
                stub.table = None
        return self._front(table)

    def _front(self, table: _Table) -> SkipFront:
        back = [taken.tolist() for taken in table.taken]
        cosines = table.cosines.tolist()
        found = [self._read_back(back, units) if valid else None for units, valid in enumerate(table.valid.tolist())]
        return SkipFront(
            tuple(found), tuple(c if skip is not None else 0.0 for c, skip in zip(cosines, found, strict=True))
        )

    def _read_back(self, back: list[list[int]], units: int) -> LayerSkipSet:
        positions: set[int] = set()
        for layer in range(len(back) - 1, -1, -1):
            choice = self._stubs[layer].choices[back[layer][units]]
            positions |= choice.skip_set(layer).positions
            units -= choice.saved
        return LayerSkipSet.at(positions)

    def _allowed(self, layer: int, kept_layers: frozenset[int]) -> tuple[Choice, ...]:
        return self.choices[:1] if layer in kept_layers else self.choices


class BranchedLayer(LayerStub):
    """Makes of every branch all that may be made of it by one layer, and goes on with the best.

    Args:
        layer: The layer.
        programs: Makes the layer without its attention or its MLP.
        choices: What may be done with it.
        index: Its index.

    Attributes:
        table: The solution in progress.
    """

    def __init__(self, layer: nn.Module, programs: ProgramBuilder, choices: Sequence[Choice], *, index: int) -> None:
        super().__init__(layer, programs.output_length)
        self.choices = tuple(choices)
        self.table: _Table | None = None
        self.__dict__["variants"] = [programs.without(c.skip_set(index)).modules[index] for c in self.choices]

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Maps the branches ``[1, branches * r, hidden]`` to the best that can be made of them."""
        assert self.table is not None, "no programme is being solved"
        made = [variant(hidden_states, *args, **kwargs) for variant in self.variants]
        states = [out if isinstance(out, torch.Tensor) else out[0] for out in made]
        best = self.table.advance(states, [choice.saved for choice in self.choices])
        return self.shaped(best.reshape(hidden_states.shape))


class _Table:
    """One solution: which branches exist, how good they are, and what each was made by.

    Args:
        num_branches: Units saved, 0 included.
        num_tokens: Tokens of each branch.
        least_cosine: See `SkipProgramme`.

    Attributes:
        valid: bool ``[branches]``.
        cosines: float32 ``[branches]``, of the latest layer.
        taken: For each layer so far the index of its choice, int64 ``[branches]``.
    """

    def __init__(self, num_branches: int, num_tokens: int, least_cosine: float) -> None:
        self._num_tokens = num_tokens
        self._least = least_cosine
        self.valid = torch.arange(num_branches) == 0
        self.cosines = torch.zeros(num_branches)
        self.taken: list[Tensor] = []

    def advance(self, states: Sequence[Tensor], saved: Sequence[int]) -> Tensor:
        """Chooses for each branch among what saves its number of units, the first among equals.

        Args:
            states: For each choice what the layer makes of all branches, ``[1, branches * r, hidden]``.
            saved: Units that each choice saves.

        Returns:
            ``[branches, r, hidden]``.
        """
        valid = self.valid.to(states[0].device)
        branches = [made.reshape(len(valid), self._num_tokens, -1) for made in states]
        truth = branches[0][0].float()
        shifted = [made.roll(units, dims=0) for made, units in zip(branches, saved, strict=True)]
        exists = torch.stack([_moved(valid, units) for units in saved])
        scores = torch.stack(
            [functional.cosine_similarity(made.float(), truth, dim=-1).mean(dim=1) for made in shifted]
        )
        scores = torch.where(exists & (scores >= self._least), scores, -torch.inf)
        self.cosines, taken = scores.max(dim=0)
        self.valid = self.cosines > -torch.inf
        self.taken.append(taken)
        return torch.stack(shifted)[taken, torch.arange(len(valid), device=taken.device)]


def _moved(valid: Tensor, units: int) -> Tensor:
    """Whether the branch that saves ``units`` less exists."""
    moved = valid.roll(units)
    moved[:units] = False
    return moved
