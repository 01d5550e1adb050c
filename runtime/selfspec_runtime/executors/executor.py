"""What executes rounds: the contract between the decoder's loop and an executor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    from selfspec_runtime.acceptance import Verdict
    from selfspec_runtime.cache import KVCache
    from selfspec_runtime.drafts.draft import Draft
    from selfspec_runtime.rules import AcceptanceRule
    from selfspec_runtime.sequence import Sequence

ExecutorName = Literal["auto", "eager", "cuda_graph"]


@dataclass(frozen=True)
class ExecutedRound:
    """A round that an executor ran from draft to verdict.

    Attributes:
        draft: What was proposed.
        verdict: How much of it stands, and the token after it.
        draft_s: Seconds until the draft was complete; 0.0 where draft and verification were one replay.
        verify_s: Seconds from there to the verdict.
    """

    draft: Draft
    verdict: Verdict
    draft_s: float
    verify_s: float


class Executor(ABC):
    """Runs rounds for one draft source and one controller.

    Contract: a round leaves the committed part of the cache as it was, decides as the acceptance rule would, and
    neither commits tokens nor tells source or controller about the outcome: the decoder does, for every executor.

    Attributes:
        name: Short name for tables.
        notice: One sentence on why rounds are not executed as was asked for, or None.
    """

    name: ClassVar[str]
    notice: str | None = None

    @abstractmethod
    def begin(self, cache: KVCache) -> None:
        """Announces a generation, before its prompt's pass.

        Args:
            cache: The generation's cache; it may be empty, or hold a beginning of the prompt.
        """

    @abstractmethod
    def round(self, sequence: Sequence, cache: KVCache, *, rule: AcceptanceRule, room: int) -> ExecutedRound | None:
        """Runs one round, or leaves it to the decoder's own loop.

        Args:
            sequence: Committed tokens; the cache holds all but the last one.
            cache: The shared cache.
            rule: What the user asked for.
            room: The most draft tokens that still fit.

        Returns:
            The round, or None if the decoder is to run it pass by pass; text and cache are as they were then.

        Raises:
            NumericalError: The target's logits are not numbers.
            CapacityError: The positions lie beyond the context.
        """

    @property
    def num_host_reads(self) -> int:
        """Copies from the device that the host waited for, over all rounds."""
        return 0
