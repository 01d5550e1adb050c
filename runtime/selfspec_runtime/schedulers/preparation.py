"""One verification's preparation: the task beside it, and what it has ready."""

from __future__ import annotations

from typing import TYPE_CHECKING

from selfspec_runtime.schedulers.prepared import PreparedDraft, PreparedOutcomes
from selfspec_runtime.schedulers.side_task import SideTask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from selfspec_runtime.schedulers.outcomes import Place
    from selfspec_runtime.schedulers.preparer import Preparer, Verification
    from selfspec_runtime.schedulers.side_task import Work


class Preparation:
    """Prepares drafts for one verification's outcomes, in order, until it is told to stop.

    Args:
        preparer: Drafts; used by the task alone until the preparation has ended.
        verification: What is verified.
        places: Outcomes to prepare for, likeliest first.
        clock: Seconds.
        make_task: Runs it.
    """

    def __init__(
        self,
        preparer: Preparer,
        verification: Verification,
        places: list[Place],
        *,
        clock: Callable[[], float],
        make_task: Callable[[Work], SideTask] = SideTask,
    ) -> None:
        self.verification = verification
        self.outcomes = PreparedOutcomes(verification.text)
        self._preparer = preparer
        self._places = places
        self._clock = clock
        self._began_s = clock()
        self._in_progress: tuple[int, ...] | None = None
        self._wanted: tuple[int, ...] | None = None
        self._task = make_task(self._work)

    def start(self) -> None:
        """Begins."""
        self._task.start()

    def finish(self, ids: list[int]) -> PreparedDraft | None:
        """Ends it and returns the draft for the outcome that came true, or None.

        A draft for this outcome that is being made is waited for.

        Args:
            ids: All committed tokens, those of the outcome included.

        Raises:
            Exception: Whatever the task raised.
        """
        self._wanted = tuple(ids[len(self.verification.text) :])
        self.end()
        self._task.raise_error()
        return self.outcomes.take(ids)

    def end(self) -> None:
        """Stops it, and returns when nothing of it runs any more."""
        self._task.stop()

    def _work(self, asked_to_stop: Callable[[], bool]) -> None:
        def stopped() -> bool:
            return asked_to_stop() and self._in_progress != self._wanted

        self._preparer.begin(self.verification)
        for committed in self._guesses():
            if asked_to_stop():
                return
            self._in_progress = committed
            draft = self._preparer.draft_after(committed, stopped)
            if draft is not None:
                self.outcomes.add(committed, PreparedDraft(draft, self._clock() - self._began_s))

    def _guesses(self) -> Iterator[tuple[int, ...]]:
        """The outcomes by the tokens that they commit."""
        following: dict[int, list[int]] = {}
        for place in self._places:
            kept = place.num_accepted
            if kept not in following:
                number = 1 + max(other.rank for other in self._places if other.num_accepted == kept)
                following[kept] = self._preparer.next_tokens(kept, number)
            if place.rank < len(following[kept]):
                yield (*self.verification.drafted[:kept], following[kept][place.rank])
