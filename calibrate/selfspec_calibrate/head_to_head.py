"""Rivals side by side on the same prompts, again and again, until one of them is ahead or the time is up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

from selfspec_calibrate.block_store import BlockStore
from selfspec_calibrate.interleave import shuffled
from selfspec_calibrate.interruption import interruptible
from selfspec_calibrate.measurement import EngineArm, MeasuredPrompt
from selfspec_calibrate.pair import PromptPair, by_prompt, speedup, speedup_interval
from selfspec_runtime.generation import GenerationSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selfspec_calibrate.interleave import Block

NEGLIGIBLE_GAIN = 0.01
"""Whoever is surely not faster than another by more is no longer a rival to it."""

MAX_TURNS = 3
"""Most times through all prompts, each prompt twice: more runs of the same prompts would tell little, since it is over
prompts that plans differ."""


@dataclass(frozen=True, kw_only=True)
class Standings:
    """What was measured.

    Attributes:
        baseline: Name of the arm that all are compared with.
        blocks: In the order in which they ran; an arm is in those that it ran in.
        contenders: For each group the names of those that nobody has left behind.
    """

    baseline: str
    blocks: tuple[Block, ...]
    contenders: tuple[tuple[str, ...], ...]

    @property
    def failed(self) -> frozenset[str]:
        """Arms that did not get through a prompt."""
        return frozenset(name for block in self.blocks for name in block.failures)

    def speedup(self, name: str, *, over: str | None = None) -> float | None:
        """An arm's speed over another one's, or over the baseline's; None if they never ran together."""
        return speedup(self.pairs(name, over=over))

    def num_blocks(self, name: str, other: str) -> int:
        """In how many blocks two arms ran together."""
        return sum({name, other} <= block.runs.keys() for block in self.blocks)

    def pairs(self, name: str, *, over: str | None = None) -> list[PromptPair]:
        """Both on the same prompts, from the blocks in which both ran; a prompt's blocks are added up."""
        return by_prompt(self._pairs(name, self.baseline if over is None else over))

    def _pairs(self, name: str, other: str) -> Iterator[PromptPair]:
        for runs in (block.runs for block in self.blocks):
            if name in runs and other in runs:
                yield PromptPair.of(runs[other], runs[name])


@dataclass(frozen=True, kw_only=True)
class HeadToHead:
    """Measures groups of rivals; each group has its own winner.

    A mirrored block holds everybody who is still in question, so that all of them meet the same minute of the machine.
    An arm leaves once the interval over prompts says that it is not faster than its group's leader by more than
    `NEGLIGIBLE_GAIN`; what is left of the time is then the others'.

    Attributes:
        prompts: The prompts.
        settings: How to generate.
        repeats: Mirrored blocks per prompt and turn.
        max_turns: Most runs through all prompts.
        seed: Of the orders of prompts.
        deadline: Time of ``clock`` after which no prompt is begun but the first, or None.
        clock: Gives seconds.
        store: Keeps the measurements.
    """

    prompts: Sequence[MeasuredPrompt]
    settings: GenerationSettings
    repeats: int = 1
    max_turns: int = MAX_TURNS
    seed: int = 0
    deadline: float | None = None
    clock: Callable[[], float] = monotonic
    store: BlockStore = field(default_factory=BlockStore)

    def measure(self, groups: Sequence[Sequence[EngineArm]], *, baseline: EngineArm) -> Standings:
        """Measures until every group has one contender left.

        Args:
            groups: Arms that may take each other's place; all names differ.
            baseline: The arm that runs in every block.

        Raises:
            Interrupted: Ctrl-C; what was measured is saved.
            SelfspecError: The baseline fails.
        """
        standings = Standings(
            baseline=baseline.name,
            blocks=(),
            contenders=tuple(tuple(arm.name for arm in group) for group in groups),
        )
        arms = {arm.name: arm for group in groups for arm in group}
        purpose = repr(standings.contenders)
        is_closed = self.store.is_closed(purpose)
        with interruptible("the finalists measured so far are saved") as guard:
            for turn, prompt in self._schedule():
                open_names = [name for group in standings.contenders if len(group) > 1 for name in group]
                running = [baseline, *(arms[name] for name in open_names)]
                if not open_names or (standings.blocks and not is_closed and self._is_late()):
                    break
                if is_closed and not self.store.holds(running, prompt, self.settings, repeats=self.repeats, turn=turn):
                    break
                guard.check()
                block = self.store.block(running, prompt, self.settings, repeats=self.repeats, turn=turn)
                standings = _with(standings, block)
        if not standings.failed:  # a block in which something failed is tried again
            self.store.close(purpose)
        return standings

    def _schedule(self) -> Iterator[tuple[int, MeasuredPrompt]]:
        for turn in range(self.max_turns):
            for prompt in shuffled(self.prompts, seed=self.seed + turn):
                yield turn, prompt

    def _is_late(self) -> bool:
        return self.deadline is not None and self.clock() >= self.deadline


def _with(standings: Standings, block: Block) -> Standings:
    """The standings after another block."""
    told = Standings(baseline=standings.baseline, blocks=(*standings.blocks, block), contenders=())
    contenders = tuple(_contenders(told, group, block) for group in standings.contenders)
    return Standings(baseline=told.baseline, blocks=told.blocks, contenders=contenders)


def _contenders(told: Standings, group: tuple[str, ...], block: Block) -> tuple[str, ...]:
    """Those of a group that did not fail and that its leader has not left behind."""
    if len(group) < 2:
        return group
    working = tuple(name for name in group if name not in block.failures)
    if not working:
        return ()
    leader = max(working, key=lambda name: told.speedup(name) or 0.0)
    return tuple(name for name in working if name == leader or not _is_behind(told, name, leader))


def _is_behind(told: Standings, name: str, leader: str) -> bool:
    interval = speedup_interval(told.pairs(name, over=leader))
    return interval is not None and interval.high is not None and interval.high < 1 + NEGLIGIBLE_GAIN
