"""What a plan and plain decoding took on one prompt, side by side, and the speedup over many of these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from selfspec_calibrate.interval import ratio_interval

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from selfspec_calibrate.measurement import RunMeasurement
    from selfspec_runtime.calibration import Interval


@dataclass(frozen=True, kw_only=True)
class PromptPair:
    """Totals over the runs of one prompt, from mirrored blocks.

    Attributes:
        prompt_id: The prompt.
        kind: Its kind.
        plain_s: Decode seconds of the baseline.
        plain_tokens: Tokens that they were spent on.
        plan_s: Decode seconds of the plan.
        plan_tokens: Tokens that they were spent on.
    """

    prompt_id: str
    kind: str
    plain_s: float
    plain_tokens: int
    plan_s: float
    plan_tokens: int

    @classmethod
    def of(
        cls, plain: Sequence[RunMeasurement], plan: Sequence[RunMeasurement], *, prompt_id: str | None = None
    ) -> Self:
        """Adds up the runs of one prompt, at least one on each side.

        Args:
            plain: The baseline's runs.
            plan: The plan's runs.
            prompt_id: What to file them under, where that is not the runs' own prompt.
        """
        return cls(
            prompt_id=prompt_id or plan[0].prompt_id,
            kind=plan[0].kind,
            plain_s=sum(run.decode_s for run in plain),
            plain_tokens=sum(run.num_tokens for run in plain),
            plan_s=sum(run.decode_s for run in plan),
            plan_tokens=sum(run.num_tokens for run in plan),
        )

    @property
    def is_timed(self) -> bool:
        """Whether both sides emitted something after the first token; otherwise there is nothing to compare."""
        return min(self.plain_s, self.plain_tokens, self.plan_s, self.plan_tokens) > 0

    @property
    def ratio(self) -> float:
        """Seconds per token of plain decoding over the plan's; only of a timed pair."""
        return self.plain_seconds / self.plan_seconds

    @property
    def plain_seconds(self) -> float:
        """Seconds of plain decoding for as many tokens as both sides emitted on average.

        Where both sides say the same, these are the measured seconds. Where sampling made one of them longer, both
        are held to the same work, or a plan would look fast for having been sent on easier prompts.
        """
        return self.plain_s / self.plain_tokens * self._tokens

    @property
    def plan_seconds(self) -> float:
        """Seconds of the plan for the same tokens."""
        return self.plan_s / self.plan_tokens * self._tokens

    @property
    def _tokens(self) -> float:
        return (self.plain_tokens + self.plan_tokens) / 2

    def plus(self, other: PromptPair) -> PromptPair:
        """Adds the runs of the same prompt from another time."""
        return PromptPair(
            prompt_id=self.prompt_id,
            kind=self.kind,
            plain_s=self.plain_s + other.plain_s,
            plain_tokens=self.plain_tokens + other.plain_tokens,
            plan_s=self.plan_s + other.plan_s,
            plan_tokens=self.plan_tokens + other.plan_tokens,
        )


def by_prompt(pairs: Iterable[PromptPair]) -> list[PromptPair]:
    """Adds up the pairs of each prompt, so that prompts are the sample."""
    found: dict[str, PromptPair] = {}
    for pair in pairs:
        known = found.get(pair.prompt_id)
        found[pair.prompt_id] = pair if known is None else known.plus(pair)
    return list(found.values())


def speedup(pairs: Iterable[PromptPair]) -> float | None:
    """Total plain seconds over total plan seconds for the same tokens, or None if nothing was timed.

    Totals, not a mean of ratios: a gain counts for the time that it saves.
    """
    timed = [pair for pair in pairs if pair.is_timed]
    if not timed:
        return None
    return sum(pair.plain_seconds for pair in timed) / sum(pair.plan_seconds for pair in timed)


def speedup_interval(pairs: Iterable[PromptPair]) -> Interval | None:
    """The same as `speedup`, with an interval over prompts."""
    timed = [pair for pair in pairs if pair.is_timed]
    if not timed:
        return None
    return ratio_interval([pair.plain_seconds for pair in timed], [pair.plan_seconds for pair in timed])
