"""Plans measured on prompts that the search has never seen, interleaved with plain decoding in one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product

from selfspec_calibrate import events
from selfspec_calibrate.block_store import BlockStore
from selfspec_calibrate.divergence import first_divergence
from selfspec_calibrate.interleave import Block, shuffled
from selfspec_calibrate.interruption import interruptible
from selfspec_calibrate.measurement import Arm, EngineArm, MeasuredPrompt, PlanEngine, RunMeasurement, warm_up
from selfspec_calibrate.pair import PromptPair
from selfspec_calibrate.result_rows import PromptRuns, result_rows
from selfspec_calibrate.trial_book import plan_key
from selfspec_runtime.calibration import KindResult
from selfspec_runtime.engine import GenerationSettings
from selfspec_runtime.plan import PLAIN, DraftPlan

Margin = Callable[[Sequence[int], Sequence[int], GenerationSettings], float]


@dataclass(frozen=True)
class HeldOutBlock:
    """One prompt at one setting.

    Attributes:
        settings: How it was generated.
        prompt: The prompt.
        block: The runs of all arms.
    """

    settings: GenerationSettings
    prompt: MeasuredPrompt
    block: Block


@dataclass(frozen=True, kw_only=True)
class HeldOutRuns:
    """What was measured.

    Attributes:
        blocks: One per setting and prompt.
        settings: The settings, in the order in which they were measured.
        margin: Gives the top-two margin after a prompt and the tokens that two texts have in common.
        stock_name: Name of the arm of ``transformers`` generate, or None.
    """

    blocks: tuple[HeldOutBlock, ...]
    settings: tuple[GenerationSettings, ...]
    margin: Margin
    stock_name: str | None = None

    def failure(self, plan: DraftPlan) -> str | None:
        """Why the plan did not get through all prompts, or None."""
        failures = (each.block.failures.get(plan_key(plan)) for each in self.blocks)
        return next((str(each) for each in failures if each is not None), None)

    def rows(self, plan: DraftPlan) -> tuple[KindResult, ...]:
        """Rows per kind and over all at the first settings, then at the others; none for a plan that failed."""
        if self.failure(plan) is not None:
            return ()
        tables = (
            result_rows([self._prompt_runs(each, plan) for each in self._at(settings)], settings.sampling.describe())
            for settings in self.settings
        )
        return tuple(row for table in tables for row in table)

    def pairs(self, plan: DraftPlan, *, against: DraftPlan = PLAIN) -> list[PromptPair]:
        """The plan beside another one on each prompt, at the first settings; both must have got through."""
        return [PromptPair.of(self._runs(each, against), self._runs(each, plan)) for each in self._first]

    def runs(self, plan: DraftPlan) -> list[tuple[MeasuredPrompt, list[RunMeasurement]]]:
        """All runs of a plan at the first settings, by prompt."""
        return [(each.prompt, self._runs(each, plan)) for each in self._first]

    @property
    def _first(self) -> list[HeldOutBlock]:
        return self._at(self.settings[0])

    def _at(self, settings: GenerationSettings) -> list[HeldOutBlock]:
        return [each for each in self.blocks if each.settings is settings]

    def _runs(self, measured: HeldOutBlock, plan: DraftPlan) -> list[RunMeasurement]:
        return measured.block.runs[plan_key(plan)]

    def _prompt_runs(self, measured: HeldOutBlock, plan: DraftPlan) -> PromptRuns:
        plain, own = self._runs(measured, PLAIN), self._runs(measured, plan)
        return PromptRuns(
            kind=measured.prompt.kind,
            plain=plain,
            plan=own,
            stock=measured.block.runs.get(self.stock_name, []) if self.stock_name is not None else [],
            margin=self._margin(measured, plain[0].token_ids, own[0].token_ids),
        )

    def _margin(self, measured: HeldOutBlock, plain: tuple[int, ...], plan: tuple[int, ...]) -> float | None:
        place = first_divergence(plain, plan) if measured.settings.sampling.greedy else None
        if place is None:
            return None
        return self.margin(measured.prompt.token_ids, plain[:place], measured.settings)


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Measures plans in mirrored blocks with plain decoding.

    Attributes:
        make_engine: Makes an engine for a plan, on the shared target.
        prompts: The held-out prompts.
        settings: How to generate.
        margin: As for `HeldOutRuns`.
        stock: ``transformers`` generate, or None to leave it out.
        repeats: Mirrored blocks per prompt.
        seed: Of the order of prompts.
        store: Keeps the measurements.
        listener: Hears of progress.
        name: Of the phase, in progress events.
        follow_up: Gives the prompt that follows on a measured block, such as a conversation's next turn, or None.
    """

    make_engine: Callable[[DraftPlan], PlanEngine]
    prompts: Sequence[MeasuredPrompt]
    settings: Sequence[GenerationSettings]
    margin: Margin
    stock: Arm | None = None
    repeats: int = 1
    seed: int = 0
    store: BlockStore = field(default_factory=BlockStore)
    listener: events.Listener = events.ignore
    name: str = "verdict"
    follow_up: Callable[[MeasuredPrompt, Block], MeasuredPrompt | None] | None = None

    def measure(self, plans: Sequence[DraftPlan]) -> HeldOutRuns:
        """Measures.

        Args:
            plans: Plans that draft, all different.

        Raises:
            Interrupted: Ctrl-C; what was measured is saved.
            SelfspecError: Plain decoding fails.
        """
        arms: list[Arm] = [self._arm(plan) for plan in (PLAIN, *plans)]
        middle = [] if self.stock is None else [self.stock]
        found: list[HeldOutBlock] = []
        with interruptible("the held-out prompts measured so far are saved") as guard:
            for settings, first in product(self.settings, shuffled(self.prompts, seed=self.seed)):
                prompt: MeasuredPrompt | None = first
                while prompt is not None:
                    guard.check()
                    block = self.store.block(arms, prompt, settings, repeats=self.repeats, middle=middle)
                    arms = [arm for arm in arms if arm.name not in block.failures]
                    middle = self._still_working(middle, block)
                    found.append(HeldOutBlock(settings, prompt, block))
                    self.listener(events.Progressed(self.name, len(found), settings.sampling.describe()))
                    prompt = self.follow_up(prompt, block) if self.follow_up is not None else None
        stock_name = None if self.stock is None else self.stock.name
        return HeldOutRuns(
            blocks=tuple(found), settings=tuple(self.settings), margin=self.margin, stock_name=stock_name
        )

    def _arm(self, plan: DraftPlan) -> EngineArm:
        engine = self.make_engine(plan)
        warm_up(engine, self.prompts[0], self.settings[0])
        return EngineArm(plan_key(plan), engine)

    def _still_working(self, middle: list[Arm], block: Block) -> list[Arm]:
        for arm in middle:
            if arm.name in block.failures:
                told = f"The comparison with transformers is left out: {block.failures[arm.name]}"
                self.listener(events.Noted(told))
        return [arm for arm in middle if arm.name not in block.failures]
