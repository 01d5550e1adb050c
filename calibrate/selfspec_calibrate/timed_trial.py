"""A trial of the timed study on its way through the prompts."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from selfspec_calibrate.measurement import EngineArm
from selfspec_calibrate.pair import PromptPair
from selfspec_calibrate.readiness import ready_engine
from selfspec_calibrate.trial_book import plan_key
from selfspec_runtime.errors import SelfspecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from selfspec_calibrate.measurement import MeasuredPrompt, PlanEngine
    from selfspec_calibrate.plan_queue import StartedTrial
    from selfspec_runtime.generation import GenerationSettings
    from selfspec_runtime.plan import DraftPlan


@dataclass
class TimedTrial:
    """A plan while it is being timed.

    Attributes:
        started: Plan and trial.
        known: What earlier, unfinished trials of the plan have measured, by prompt; it is not measured again.
        own: What this trial has measured.
        engine: Made when it is first needed, and let go of at the end.
        is_live: Whether the trial is still running.
    """

    started: StartedTrial
    known: Mapping[str, PromptPair]
    own: dict[str, PromptPair] = field(default_factory=dict)
    engine: PlanEngine | None = None
    is_live: bool = True

    @property
    def pairs(self) -> dict[str, PromptPair]:
        """Everything measured of the plan."""
        return {**self.known, **self.own}

    @property
    def arm(self) -> EngineArm:
        """The engine as an arm; only once it is made."""
        assert self.engine is not None
        return EngineArm(f"trial {self.started.trial.number}", self.engine)

    @property
    def order_seed(self) -> int:
        """Seed of its order of prompts; the same when it is taken up again."""
        return zlib.crc32(plan_key(self.started.plan).encode())

    def prepare(
        self, make_engine: Callable[[DraftPlan], PlanEngine], prompt: MeasuredPrompt, settings: GenerationSettings
    ) -> SelfspecError | None:
        """Makes the engine and warms it up, unless it is there; returns why that failed."""
        if self.engine is not None:
            return None
        made = ready_engine(partial(make_engine, self.started.plan), prompt, settings)
        if isinstance(made, SelfspecError):
            return made
        self.engine = made
        return None
