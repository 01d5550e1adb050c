"""What a draft source proposes in one round."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from selfspec_runtime.tree.token_tree import PlacedTree, TokenTree

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec_runtime.cache import KVCache
    from selfspec_runtime.kernels.acceptance import KernelLaw

    TokenLaw: TypeAlias = Tensor | KernelLaw


@dataclass(frozen=True)
class ExactPrefix:
    """Hidden states that the target's own first layers computed while drafting.

    Only an exact prefix may be resumed: never a quantised one, nor one with a sub-layer left out.

    Attributes:
        exit_layer: Number of layers that were run.
        hidden: ``[1, g, hidden]``: for the last committed token and every draft token but the last.
    """

    exit_layer: int
    hidden: Tensor


@dataclass(frozen=True)
class Branch:
    """A token beside the chain, to be verified with it: the only other one of its text.

    Attributes:
        place: Index of the chain token that it would stand in for.
        token_id: The token.
        prob: Its probability in the draft's unprocessed law, for the record.
    """

    place: int
    token_id: int
    prob: float


@dataclass
class Draft:
    """Draft tokens with the law they were drawn from: a chain, and perhaps side branches.

    Attributes:
        token_ids: The chain's tokens, in order.
        probs: For each token the law it was drawn from, ``[vocab]`` float32 (on CUDA as kernels read it), or None if it
            was chosen without randomness (a one-hot law).
        prefix: Hidden states from which verification may resume, if any.
        origin: Kind of the source that proposed the tokens, for the record.
        num_passes: Draft passes run.
        branches: Tokens to verify beside the chain's own; none unless a tree is drafted.
    """

    token_ids: list[int] = field(default_factory=list)
    probs: list[TokenLaw | None] = field(default_factory=list)
    prefix: ExactPrefix | None = None
    origin: str = "none"
    num_passes: int = 0
    branches: tuple[Branch, ...] = ()

    def __len__(self) -> int:
        """Number of tokens in the chain."""
        return len(self.token_ids)

    @property
    def node_ids(self) -> list[int]:
        """All drafted tokens: the chain, then the branches."""
        return [*self.token_ids, *(branch.token_id for branch in self.branches)]

    @property
    def tree(self) -> TokenTree:
        """The shape of the block that is verified; row 0 is the last committed token."""
        return TokenTree.caterpillar(len(self), [branch.place for branch in self.branches])

    def branch_to(self, place: int, token_id: int) -> int | None:
        """Number of the branch that stands for this token at this place of the chain, if there is one."""
        for number, branch in enumerate(self.branches):
            if (branch.place, branch.token_id) == (place, token_id):
                return number
        return None

    def row_of(self, branch: int) -> int:
        """The row of a branch in the block."""
        return 1 + len(self) + branch

    def path(self, num_on_chain: int, branch: int | None) -> list[int]:
        """The tokens of the chain's beginning, and the branch's if one follows."""
        return self.token_ids[:num_on_chain] + ([] if branch is None else [self.branches[branch].token_id])

    def compact(self, cache: KVCache, start: int, *, branch: int | None) -> None:
        """Moves an accepted branch's keys and values to where its text continues; a chain's are there already.

        Args:
            cache: The shared cache; what is committed is not touched.
            start: Position of the last committed token.
            branch: Number of the branch, or None.
        """
        if branch is not None:
            cache.compact(PlacedTree(self.tree, start).slots_to(self.row_of(branch)), start=start)

    def append(self, token_id: int, probs: TokenLaw | None) -> None:
        """Adds a token and its law."""
        self.token_ids.append(token_id)
        self.probs.append(probs)
