"""Engines that take scripted seconds instead of real ones, so that what is measured is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from selfspec_calibrate.measurement import MeasuredPrompt
from selfspec_runtime.generation import Generation, GenerationSettings
from selfspec_runtime.plan import PLAIN, DraftPlan
from selfspec_runtime.stats import AcceptanceStats, PhaseSeconds

SECONDS = Callable[[tuple[int, ...]], float]


@dataclass
class ScriptedEngine:
    """Emits a fixed number of tokens per prompt, each of which takes a scripted time.

    Attributes:
        token_s: Seconds per token after the first, or a function of the prompt's ids.
        num_tokens: Tokens to emit, or a function of the prompt's ids; cut to the settings' length.
        tokens: What is emitted; by default a function of the prompt alone.
        error: Raised instead of generating.
        extra_bytes: What the plan holds.
        calls: The prompts that were decoded, in order.
        settings: The settings that it was called with.
        log: Shared by several engines: their names in the order of their calls.
        name: Name in the log.
    """

    token_s: float | SECONDS = 1.0
    num_tokens: int | Callable[[tuple[int, ...]], int] = 11
    tokens: Callable[[int], int] = lambda index: 100 + index
    error: Exception | Callable[[tuple[int, ...]], Exception | None] | None = None
    extra_bytes: int = 0
    calls: list[tuple[int, ...]] = field(default_factory=list)
    settings: list[GenerationSettings] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    name: str = "engine"

    def generate(self, prompt_ids: list[int], settings: GenerationSettings) -> Generation:
        ids = tuple(prompt_ids)
        self.calls.append(ids)
        self.settings.append(settings)
        self.log.append(self.name)
        error = self.error(ids) if callable(self.error) else self.error
        if error is not None:
            raise error
        wanted = self.num_tokens(ids) if callable(self.num_tokens) else self.num_tokens
        count = min(wanted, settings.max_new_tokens)
        token_s = self.token_s(ids) if callable(self.token_s) else self.token_s
        decode_s = token_s * (count - 1)
        stats = AcceptanceStats(
            num_rounds=max(count // 2, 1),
            num_drafts=count // 2,
            num_draft_tokens=count,
            num_accepted_tokens=count // 2,
            num_emitted_tokens=count - 1,
        )
        return Generation(
            token_ids=tuple(self.tokens(index) for index in range(count)),
            text="",
            finish_reason="length",
            stats=stats,
            seconds=PhaseSeconds(prefill=0.5, draft=0.25 * decode_s, verify=0.5 * decode_s, host=0.25 * decode_s),
        )


@dataclass
class ScriptedFactory:
    """Makes engines for plans whose speed is a function of the plan and the prompt.

    Attributes:
        token_s: Seconds per token of a plan on a prompt.
        extra_bytes: What a plan holds.
        refuse: Raised instead of making an engine, if not None.
        tokens: What a plan emits at each place.
        built: Plans that an engine was made for.
        log: ``describe()`` of the plan of every generation.
    """

    token_s: Callable[[DraftPlan, tuple[int, ...]], float]
    extra_bytes: Callable[[DraftPlan], int] = lambda plan: 0
    refuse: Callable[[DraftPlan], Exception | None] = lambda plan: None
    tokens: Callable[[DraftPlan, int], int] = lambda plan, index: 100 + index
    num_tokens: int = 11
    built: list[DraftPlan] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    def __call__(self, plan: DraftPlan = PLAIN) -> ScriptedEngine:
        self.built.append(plan)
        error = self.refuse(plan)
        if error is not None:
            raise error
        return ScriptedEngine(
            token_s=lambda ids: self.token_s(plan, ids),
            num_tokens=self.num_tokens,
            tokens=lambda index: self.tokens(plan, index),
            extra_bytes=self.extra_bytes(plan),
            log=self.log,
            name=plan.describe(),
        )


def scripted_prompts(count: int, *, kinds: tuple[str, ...] = ("chat",)) -> list[MeasuredPrompt]:
    """Prompts ``p0, p1, ...`` whose only token is their number."""
    return [MeasuredPrompt(f"p{index}", kinds[index % len(kinds)], (index,)) for index in range(count)]
