"""One timed generation: the same clock, the same count of tokens and the prompt's pass apart, whatever decodes."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selfspec_runtime.drafts.source import DraftSource
    from selfspec_runtime.generation import Generation, GenerationSettings
    from selfspec_runtime.stats import AcceptanceStats, PhaseSeconds

WARM_UP_TOKENS = 8
"""Enough rounds that kernels are chosen, weights are packed and pages are in memory."""


@dataclass(frozen=True)
class MeasuredPrompt:
    """A prompt that is ready to be decoded.

    Attributes:
        prompt_id: Tells it apart from all others, in this run and in a resumed one.
        kind: What it is about; results are split by it.
        token_ids: The rendered prompt, at least one id.
    """

    prompt_id: str
    kind: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class RunMeasurement:
    """What one generation took.

    Attributes:
        arm: What decoded, for example "plain".
        prompt_id: The prompt.
        kind: Its kind.
        num_tokens: Tokens emitted after the first ones, which come with the prompt's pass: the tokens that
            ``decode_s`` was spent on.
        decode_s: Seconds from the first token to the last.
        time_to_first_token_s: Seconds up to the first token.
        stats: Counts over all rounds after the first token.
        seconds: Where the time went.
        token_ids: All generated ids.
        choosing_s: Seconds of ``decode_s`` that a source spent on choosing how to draft, 0 for one that does not.
    """

    arm: str
    prompt_id: str
    kind: str
    num_tokens: int
    decode_s: float
    time_to_first_token_s: float
    stats: AcceptanceStats
    seconds: PhaseSeconds
    token_ids: tuple[int, ...]
    choosing_s: float = 0.0


class Generator(Protocol):
    """What generates from token ids, as `selfspec_runtime.engine.Engine` does."""

    def generate(self, prompt_ids: list[int], settings: GenerationSettings) -> Generation:
        """Generates to the end."""


class PlanEngine(Generator, Protocol):
    """A generator that knows what it holds beyond the model."""

    @property
    def extra_bytes(self) -> int:
        """Memory beyond the model and its cache."""


class Arm(Protocol):
    """One of the ways to decode that are compared."""

    @property
    def name(self) -> str:
        """Tells it apart from the other arms."""

    def measure(self, prompt: MeasuredPrompt, settings: GenerationSettings) -> RunMeasurement:
        """Decodes one prompt once."""


@dataclass(frozen=True)
class EngineArm:
    """An engine as an arm.

    Attributes:
        name: Name of the arm.
        engine: What decodes.
    """

    name: str
    engine: Generator

    def measure(self, prompt: MeasuredPrompt, settings: GenerationSettings) -> RunMeasurement:
        """Decodes one prompt once; see `measure`."""
        return measure(self.engine, prompt, settings, arm=self.name)


def measure(engine: Generator, prompt: MeasuredPrompt, settings: GenerationSettings, *, arm: str) -> RunMeasurement:
    """Decodes one prompt once.

    Source and controller start afresh in each generation, and settings are read only, so no run sees what an
    earlier one left. The seconds are the engine's own, which end where the device has finished; detokenisation is
    in none of them, as it is in none of ``transformers`` generate's.

    Args:
        engine: What decodes.
        prompt: The prompt.
        settings: How to generate.
        arm: Name to file it under.

    Raises:
        SelfspecError: Whatever the engine raises; nothing is measured then.
    """
    with collected_garbage():
        generation = engine.generate(list(prompt.token_ids), settings)
    return RunMeasurement(
        arm=arm,
        prompt_id=prompt.prompt_id,
        kind=prompt.kind,
        num_tokens=len(generation.token_ids) - 1,
        decode_s=generation.seconds.decode,
        time_to_first_token_s=generation.seconds.prefill,
        stats=generation.stats,
        seconds=generation.seconds,
        token_ids=generation.token_ids,
        choosing_s=_choosing_s(engine),
    )


def _choosing_s(engine: Generator) -> float:
    """Of the latest generation: what a source has spent is forgotten when the next one begins."""
    source: DraftSource | None = getattr(engine, "source", None)
    return 0.0 if source is None else source.overhead.seconds


def warm_up(engine: Generator, prompt: MeasuredPrompt, settings: GenerationSettings) -> None:
    """Decodes a few tokens and forgets them, so that no first call is timed.

    Args:
        engine: What is going to be measured.
        prompt: Any prompt.
        settings: As in the measurement; only the length is cut.
    """
    engine.generate(list(prompt.token_ids), shortened(settings))


def shortened(settings: GenerationSettings) -> GenerationSettings:
    """The same settings for as many tokens as a warm-up needs."""
    return replace(settings, max_new_tokens=min(settings.max_new_tokens, WARM_UP_TOKENS))


@contextmanager
def collected_garbage() -> Iterator[None]:
    """Collects garbage before, and not during, what is timed: a collection takes as long as several tokens.

    The old generation is left alone: with a model's modules in it, going through it before each run would cost a
    tenth of a calibration's time.
    """
    was_enabled = gc.isenabled()
    gc.collect(1)
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
