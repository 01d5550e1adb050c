"""Measures a plan against plain decoding on a trace's own prompt, one run at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from selfspec_calibrate.interleave import Block
from selfspec_calibrate.measurement import WARM_UP_TOKENS, EngineArm, MeasuredPrompt
from selfspec_calibrate.pair import PromptPair, speedup
from selfspec_runtime.engine import Engine
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.sampling import SamplingSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selfspec.model import SpeculativeModel
    from selfspec_runtime.plan import DraftPlan
    from selfspec_runtime.token_trace import TokenTrace

MIRRORED_BLOCKS = 3
MAX_NEW_TOKENS = 64
"""Tokens of one run; a longer trace is measured on its beginning, so that a click takes seconds, not minutes."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a measurement is.

    Attributes:
        done: Runs that are done.
        total: Runs in all.
        ratios: Speedup over plain decoding in each finished block.
        speedup: Total plain seconds over total plan seconds of all finished blocks, None before the first.
        num_tokens: Tokens that each run generates at most.
    """

    done: int
    total: int
    ratios: tuple[float, ...] = ()
    speedup: float | None = None
    num_tokens: int = 0

    @property
    def is_finished(self) -> bool:
        """Whether there is nothing left to run."""
        return self.done == self.total


@dataclass(frozen=True)
class PairedMeasurement:
    """Measures as calibrate does: mirrored blocks of plain, plan, plan, plain in one process, the prompt's pass apart.

    Attributes:
        model: An open model.
        trace: Whose prompt is decoded, as far as the trace goes.
        num_blocks: Mirrored blocks.
    """

    model: SpeculativeModel
    trace: TokenTrace
    num_blocks: int = MIRRORED_BLOCKS

    def __call__(self, plan: DraftPlan) -> Iterator[Progress]:
        """Measures a plan.

        Args:
            plan: The plan.

        Yields:
            How far it is, before the first run and after each; the first two runs warm up and count for nothing.

        Raises:
            SelfspecError: The plan does not fit the model, or it cannot be decoded.
        """
        arms = self._arms(plan)
        prompt = MeasuredPrompt("trace", "trace", self.trace.prompt_ids)
        settings = self._settings()
        mirrored = (*arms, *reversed(arms))
        total = len(arms) + len(mirrored) * self.num_blocks
        pairs: list[PromptPair] = []
        yield _progress(0, total, pairs, settings)
        for done, arm in enumerate(arms, start=1):
            arm.measure(prompt, replace(settings, max_new_tokens=min(WARM_UP_TOKENS, settings.max_new_tokens)))
            yield _progress(done, total, pairs, settings)
        for number in range(self.num_blocks):
            block = Block()
            for place, arm in enumerate(mirrored, start=1):
                block.add(arm, prompt, settings)
                for failure in block.failures.values():
                    raise failure
                if place == len(mirrored):
                    pairs.append(PromptPair.of(block.runs["plain"], block.runs["plan"]))
                yield _progress(len(arms) + number * len(mirrored) + place, total, pairs, settings)

    def _arms(self, plan: DraftPlan) -> tuple[EngineArm, EngineArm]:
        engine = self.model.engine
        drafting = Engine(engine.target, self.model.tokenizer, plan, engine.arrays)
        return EngineArm("plain", self.model.plain_engine), EngineArm("plan", drafting)

    def _settings(self) -> GenerationSettings:
        return GenerationSettings(
            max_new_tokens=max(2, min(MAX_NEW_TOKENS, self.trace.num_tokens)),
            sampling=self._sampling(),
            eos_token_ids=self.model.defaults.eos_token_ids,
            processors=self.model.model.generation_config,
        )

    def _sampling(self) -> SamplingSettings:
        if self.model.calibration is None:
            return SamplingSettings()
        known = self.model.calibration.sampling.model_dump(include={"temperature", "top_k", "top_p", "min_p", "mode"})
        return SamplingSettings(**known)


def _progress(done: int, total: int, pairs: list[PromptPair], settings: GenerationSettings) -> Progress:
    return Progress(
        done=done,
        total=total,
        ratios=tuple(pair.ratio for pair in pairs if pair.is_timed),
        speedup=speedup(pairs),
        num_tokens=settings.max_new_tokens,
    )
