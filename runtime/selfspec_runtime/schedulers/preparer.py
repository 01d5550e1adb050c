"""What drafts beside a verification, with scratch of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from selfspec_runtime.cache import KVCache
    from selfspec_runtime.controllers.controller import Controller
    from selfspec_runtime.drafts.draft import Draft
    from selfspec_runtime.drafts.source import RoundContext
    from selfspec_runtime.rules import AcceptanceRule


@dataclass(frozen=True)
class Verification:
    """What is verified while drafts are prepared.

    Attributes:
        text: Committed token ids, a copy.
        drafted: Token ids of the chain that is verified.
        rule: Turns draft logits into tokens.
        controller: Decides how far to draft; a copy that nobody tells anything.
    """

    text: tuple[int, ...]
    drafted: tuple[int, ...]
    rule: AcceptanceRule
    controller: Controller


class Preparer(ABC):
    """Drafts for outcomes of a verification.

    :meth:`synchronize`, :meth:`reset` and :meth:`cut` are called by the thread that decodes, while nothing is being
    prepared; the others by the thread beside it. Those must touch neither the shared cache nor the target's model.
    """

    def refusal(self, rule: AcceptanceRule) -> str | None:
        """Why nothing can be prepared in a generation, in a sentence; None if it can."""
        del rule
        return None

    def synchronize(self, cache: KVCache) -> None:
        """Takes over what it needs of the shared cache before the target's pass begins."""
        del cache

    @abstractmethod
    def begin(self, verification: Verification) -> None:
        """Takes in what is verified."""

    @abstractmethod
    def next_tokens(self, num_accepted: int, number: int) -> list[int]:
        """Guesses at the token that follows the accepted ones, likeliest first; never the rejected one."""

    @abstractmethod
    def draft_after(self, committed: tuple[int, ...], stopped: Callable[[], bool]) -> Draft | None:
        """The draft for the outcome that commits these tokens; None if it was stopped before the end."""

    @abstractmethod
    def cut(self, draft: Draft, context: RoundContext) -> Draft:
        """The part of a prepared draft that the round has room for. It must not depend on the draft's tokens."""

    @abstractmethod
    def reset(self) -> None:
        """Forgets the text, as before a new generation or after an error."""

    @property
    def extra_bytes(self) -> int:
        """Memory held for it."""
        return 0
