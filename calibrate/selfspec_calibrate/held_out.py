"""Plans measured on prompts that the search has never seen, interleaved with plain decoding in one run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product

from selfspec_calibrate import events
from selfspec_calibrate.block_store import BlockStore
from selfspec_calibrate.divergence import first_divergence
from selfspec_calibrate.interleave import Block, shuffled
from selfspec_calibrate.interruption import interruptible
from selfspec_calibrate.measurement import Arm, EngineArm, MeasuredPrompt, PlanEngine, RunMeasurement, warm_up
from selfspec_calibrate.pair import PromptPair, by_prompt
from selfspec_calibrate.readiness import not_ready, ready_engine
from selfspec_calibrate.result_rows import PromptRuns, result_rows
from selfspec_calibrate.trial_book import plan_key
from selfspec_runtime.calibration import KindResult
from selfspec_runtime.errors import SelfspecError
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.plan import PLAIN, DraftPlan

Margin = Callable[[Sequence[int], Sequence[int], GenerationSettings], float]


@dataclass(frozen=True)
class HeldOutBlock:
    """One prompt at one setting.

    Attributes:
        settings: How it was generated.
        prompt: The prompt.
        block: The runs of all arms.
        question: Id of the prompt that it follows up, else its own: turns of one conversation are no sample.
    """

    settings: GenerationSettings
    prompt: MeasuredPrompt
    block: Block
    question: str


@dataclass(frozen=True, kw_only=True)
class HeldOutRuns:
    """What was measured.

    Attributes:
        blocks: One per setting and prompt.
        unready: For each plan that did not even warm up, why; by the plan's key.
        settings: The settings, in the order in which they were measured.
        margin: Gives the top-two margin after a prompt and the tokens that two texts have in common.
        stock_name: Name of the arm of ``transformers`` generate, or None.
    """

    blocks: tuple[HeldOutBlock, ...]
    settings: tuple[GenerationSettings, ...]
    margin: Margin
    stock_name: str | None = None
    unready: Mapping[str, SelfspecError] = field(default_factory=dict)

    def failure(self, plan: DraftPlan) -> str | None:
        """Why the plan did not get through all prompts, or None."""
        failures = (
            found.get(plan_key(plan)) for found in (self.unready, *(each.block.failures for each in self.blocks))
        )
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
        """The plan beside another one on each question, at the first settings; both must have got through."""
        return by_prompt(
            PromptPair.of(self._runs(each, against), self._runs(each, plan), prompt_id=each.question)
            for each in self._first
        )

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
            question=measured.question,
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
            plans: Plans that draft, all different; one that fails is left out from there on.

        Raises:
            Interrupted: Ctrl-C; what was measured is saved.
            SelfspecError: Plain decoding fails.
        """
        arms, unready = self._arms(plans)
        middle = self._warm_stock()
        found: list[HeldOutBlock] = []
        with interruptible("the held-out prompts measured so far are saved") as guard:
            for settings, first in product(self.settings, shuffled(self.prompts, seed=self.seed)):
                prompt: MeasuredPrompt | None = first
                while prompt is not None:
                    guard.check()
                    block = self.store.block(arms, prompt, settings, repeats=self.repeats, middle=middle)
                    arms = [arm for arm in arms if arm.name not in block.failures]
                    middle = self._still_working(middle, block.failures)
                    found.append(HeldOutBlock(settings, prompt, block, first.prompt_id))
                    self.listener(events.Progressed(self.name, len(found), settings.sampling.describe()))
                    prompt = self.follow_up(prompt, block) if self.follow_up is not None else None
        stock_name = None if self.stock is None else self.stock.name
        return HeldOutRuns(
            blocks=tuple(found),
            settings=tuple(self.settings),
            margin=self.margin,
            stock_name=stock_name,
            unready=unready,
        )

    def _arms(self, plans: Sequence[DraftPlan]) -> tuple[list[Arm], dict[str, SelfspecError]]:
        """Plain decoding and the plans that warm up, and why others do not."""
        plain = self.make_engine(PLAIN)
        warm_up(plain, self.prompts[0], self.settings[0])
        arms: list[Arm] = [EngineArm(plan_key(PLAIN), plain)]
        unready: dict[str, SelfspecError] = {}
        for plan in plans:
            made = ready_engine(partial(self.make_engine, plan), self.prompts[0], self.settings[0])
            if isinstance(made, SelfspecError):
                unready[plan_key(plan)] = made
            else:
                arms.append(EngineArm(plan_key(plan), made))
        return arms, unready

    def _warm_stock(self) -> list[Arm]:
        """``transformers``, as warm as our own engines are; none if it is not wanted or cannot."""
        if self.stock is None:
            return []
        failure = not_ready(self.stock, self.prompts[0], self.settings[0])
        return self._still_working([self.stock], {} if failure is None else {self.stock.name: failure})

    def _still_working(self, middle: list[Arm], failures: Mapping[str, SelfspecError]) -> list[Arm]:
        for arm in middle:
            if arm.name in failures:
                told = f"The comparison with transformers is left out: {failures[arm.name]}"
                self.listener(events.Noted(told))
        return [arm for arm in middle if arm.name not in failures]
