"""Pass by pass, as Python asks for them: what runs everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from selfspec_runtime.executors.executor import ExecutedRound, Executor

if TYPE_CHECKING:
    from selfspec_runtime.cache import KVCache
    from selfspec_runtime.rules import AcceptanceRule
    from selfspec_runtime.sequence import Sequence


class EagerExecutor(Executor):
    """Leaves every round to the decoder's own loop."""

    name: ClassVar[str] = "eager"

    def begin(self, cache: KVCache) -> None:
        """Does nothing."""
        del cache

    def round(self, sequence: Sequence, cache: KVCache, *, rule: AcceptanceRule, room: int) -> ExecutedRound | None:
        """Always None."""
        del sequence, cache, rule, room
        return None
