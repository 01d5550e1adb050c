"""Drafting ahead in a world whose times and hit rate are given: a clock that is moved by hand, and no threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, cast

import torch

from selfspec_runtime.controllers.fixed import FixedController
from selfspec_runtime.drafts.draft import Draft
from selfspec_runtime.drafts.source import DraftSource, RoundContext
from selfspec_runtime.processors import Processors
from selfspec_runtime.rules import GreedyRule
from selfspec_runtime.sampling import SamplingSettings
from selfspec_runtime.schedulers.ahead import AheadScheduler
from selfspec_runtime.schedulers.gate import AheadGate
from selfspec_runtime.schedulers.preparer import Preparer, Verification
from selfspec_runtime.schedulers.side_task import SideTask
from selfspec_runtime.sequence import Sequence

if TYPE_CHECKING:
    from selfspec_runtime.cache import KVCache

FORESEEN, UNFORESEEN = 7, 9
DRAFTED = [1, 2]


@dataclass
class Clock:
    """Seconds, moved by hand."""

    now_s: float = 0.0

    def __call__(self) -> float:
        """The time."""
        return self.now_s


class SimulatedTask(SideTask):
    """Does its work at once, and then says that no time has passed."""

    def __init__(self, work: Callable[[Callable[[], bool]], None], clock: Clock) -> None:
        super().__init__(work)
        self._clock = clock

    def start(self) -> None:
        began_s = self._clock.now_s
        self._run()
        self._clock.now_s = began_s


@dataclass
class World(DraftSource, Preparer):
    """Is the draft source and what prepares, and decides what verifications come to.

    Attributes:
        hit_rate: How often the outcome is one that was foreseen.
        draft_s: Drafting in turn, and after a miss.
        prepare_s: Drafting for all outcomes beside a verification.
        verify_s: A verification.
        beside_s: A verification with something beside it.
    """

    hit_rate: float
    draft_s: float
    prepare_s: float
    verify_s: float = 1.0
    beside_s: float = 1.0
    clock: Clock = field(default_factory=Clock)
    random: Random = field(default_factory=lambda: Random(3))
    texts: list[tuple[int, ...]] = field(default_factory=list)

    def propose(self, context: RoundContext) -> Draft:
        self.clock.now_s += self.draft_s
        return Draft(list(DRAFTED), [None, None], origin="in turn")

    def begin(self, verification: Verification) -> None:
        self.clock.now_s += self.prepare_s
        self.texts.append(verification.text)

    def next_tokens(self, num_accepted: int, number: int) -> list[int]:
        return [FORESEEN]

    def draft_after(self, committed: tuple[int, ...], stopped: Callable[[], bool]) -> Draft:
        return Draft(list(DRAFTED), [None, None], origin="ahead")

    def cut(self, draft: Draft, context: RoundContext) -> Draft:
        return Draft(draft.token_ids[: context.budget], draft.probs[: context.budget], origin=draft.origin)

    def reset(self) -> None:
        self.texts.clear()


@dataclass
class Simulation:
    """Rounds of a world under a scheduler.

    Attributes:
        world: Times and luck.
        scheduler: Under test.
        drafts: For each round where its draft came from.
        beside: For each round whether something ran beside its verification.
        turn: Called before each round; may change the world.
    """

    world: World
    scheduler: AheadScheduler
    drafts: list[str] = field(default_factory=list)
    beside: list[bool] = field(default_factory=list)
    turn: Callable[[int], None] = lambda number: None

    def run(self, num_rounds: int) -> float:
        """Plays rounds and returns the seconds that they took."""
        sequence = Sequence([4, 5], device=torch.device("cpu"))
        controller, clock = FixedController(2), self.world.clock
        rule = GreedyRule(SamplingSettings(), Processors())
        began_s = clock.now_s
        self.scheduler.reset()
        for number in range(num_rounds):
            self.turn(number)
            drafting_s = clock.now_s
            context = RoundContext(sequence, cast("KVCache", None), rule, controller, 2, 9)
            draft = self.scheduler.draft(self.world, context)
            self.drafts.append(draft.origin)
            drafted_s, seen = clock.now_s, len(self.world.texts)
            self.scheduler.start(sequence, draft, cast("Any", None), rule=rule, controller=controller)
            self.beside.append(len(self.world.texts) > seen)
            verify_s = self.world.beside_s if self.beside[-1] else self.world.verify_s
            clock.now_s += verify_s
            hit = self.world.random.random() < self.world.hit_rate
            for token in (*DRAFTED, FORESEEN if hit else UNFORESEEN):
                sequence.append(token)
            self.scheduler.observe(draft_s=drafted_s - drafting_s, verify_s=verify_s)
        return clock.now_s - began_s


def simulation(world: World, **gate: Any) -> Simulation:
    """A simulation with a scheduler of its own."""
    scheduler = AheadScheduler(
        world, AheadGate(**gate), clock=world.clock, make_task=lambda work: SimulatedTask(work, world.clock)
    )
    return Simulation(world, scheduler)
