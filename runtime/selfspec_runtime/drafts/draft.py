"""What a draft source proposes in one round."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


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


@dataclass
class Draft:
    """Draft tokens with the law they were drawn from.

    Attributes:
        token_ids: The tokens, in order.
        probs: For each token the law it was drawn from, ``[vocab]`` float32, or None if it was chosen without
            randomness (a one-hot law).
        prefix: Hidden states from which verification may resume, if any.
        origin: Kind of the source that proposed the tokens, for the record.
        num_passes: Draft passes run.
    """

    token_ids: list[int] = field(default_factory=list)
    probs: list[Tensor | None] = field(default_factory=list)
    prefix: ExactPrefix | None = None
    origin: str = "none"
    num_passes: int = 0

    def __len__(self) -> int:
        """Number of draft tokens."""
        return len(self.token_ids)

    def append(self, token_id: int, probs: Tensor | None) -> None:
        """Adds a token and its law."""
        self.token_ids.append(token_id)
        self.probs.append(probs)
