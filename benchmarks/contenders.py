"""Who decodes: the settings of transformers' generate, llama.cpp, and this runtime."""

from __future__ import annotations

import copy
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from transformers import CompileConfig, GenerationConfig, StaticCache

from selfspec_calibrate.measurement import EngineArm, MeasuredPrompt, RunMeasurement
from selfspec_calibrate.stock import StockArm, StockVariant
from selfspec_runtime.engine import Engine
from selfspec_runtime.errors import SelfspecError
from selfspec_runtime.target import Target

if TYPE_CHECKING:
    from types import FrameType

    from benchmarks.rows import Row
    from torch import Tensor
    from transformers import PreTrainedModel

    from selfspec_calibrate.measurement import Arm
    from selfspec_runtime.generation import GenerationSettings
    from selfspec_runtime.loading import LoadedModel

BASELINE = "transformers"
OWN_PLAIN = "own, plain"
OWN_PLAN = "own, plan"
LOOKUP_TOKENS = 10
"""Draft tokens of transformers' prompt lookup, as its documentation suggests."""
MEANINGLESS = "random weights: what is accepted would mean nothing"


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One column.

    Attributes:
        name: Its name.
        arm: What decodes, or None.
        reason: Why there is none.
        note: What else to know.
        is_slow: Whether it runs once where the others run twice.
        holder: Which weights it decodes with.
    """

    name: str
    arm: Arm | None = None
    reason: str = ""
    note: str = ""
    is_slow: bool = False
    holder: str = "transformers"


_FAILURES = (ValueError, TypeError, RuntimeError, AttributeError, LookupError, NotImplementedError)


class CompileTimeoutError(Exception):
    """Compiling took longer than was allowed."""


@dataclass(frozen=True)
class StaticArm(StockArm):
    """``generate`` with a static cache."""

    def _arguments(self, ids: Tensor, settings: GenerationSettings) -> dict[str, Any]:
        arguments = super()._arguments(ids, settings)
        arguments["generation_config"].cache_implementation = "static"
        return arguments


@dataclass(frozen=True)
class CompiledArm(StockArm):
    """``generate`` with a static cache and a compiled forward: one cache and one compiled function for all runs.

    Attributes:
        capacity: Positions of the cache, so that no shape changes from prompt to prompt.
        limit_s: Longest that a run may take while nothing is compiled yet.
        held: The cache, once there is one.
    """

    capacity: int = 1024
    limit_s: float = 120.0
    held: dict[str, Any] = field(default_factory=dict)

    def measure(self, prompt: MeasuredPrompt, settings: GenerationSettings) -> RunMeasurement:
        """Decodes one prompt once; the first run compiles."""
        if self.limit_s <= 0:
            message = "compiling was given no time"
            raise SelfspecError(message)
        try:
            with deadline(self.limit_s):
                return super().measure(prompt, settings)
        except CompileTimeoutError as error:
            message = f"compiling took more than {self.limit_s:.0f} s"
            raise SelfspecError(message) from error

    def _generate(self, ids: Tensor, settings: GenerationSettings, stamps: Any) -> Tensor:
        """On the one model whose compiled forward is kept from run to run."""
        try:
            with torch.no_grad():
                output: Tensor = self.model.generate(ids, streamer=stamps, **self._arguments(ids, settings))
        except _FAILURES as error:
            message = f"it fails ({type(error).__name__}: {str(error).strip().splitlines()[0][:120]})"
            raise SelfspecError(message) from error
        if not hasattr(self.model, "_compiled_call"):
            message = "transformers does not compile this model here"
            raise SelfspecError(message)
        return output

    def _arguments(self, ids: Tensor, settings: GenerationSettings) -> dict[str, Any]:
        arguments = super()._arguments(ids, settings)
        compiling = CompileConfig(mode="default")
        compiling._compile_all_devices = True
        arguments["generation_config"].compile_config = compiling
        return {**arguments, "cache": self._cache()}

    def _cache(self) -> StaticCache:
        if "cache" not in self.held:
            self.held["cache"] = StaticCache(config=self.model.config, max_cache_len=self.capacity)
        self.held["cache"].reset()
        return self.held["cache"]


def stock_contenders(model: PreTrainedModel, row: Row, *, capacity: int, compile_limit_s: float) -> list[Contender]:
    """What transformers offers; the baseline first."""
    compiled = CompiledArm(_kept(model), name="compiled", capacity=capacity, limit_s=compile_limit_s)
    found = [
        Contender(name=BASELINE, arm=StockArm(model, name=BASELINE)),
        Contender(name="static cache", arm=StaticArm(model, name="static cache"), is_slow=True),
        Contender(name="compiled", arm=compiled, note="static cache, compiled forward", is_slow=True),
    ]
    if row.exit_layer is None:
        return [*found, *(Contender(name=name, reason=MEANINGLESS) for name in ("early exit", "prompt lookup"))]
    early = StockVariant(assistant_early_exit=row.exit_layer)
    lookup = StockVariant(prompt_lookup_num_tokens=LOOKUP_TOKENS)
    return [
        *found,
        Contender(
            name="early exit",
            arm=StockArm(model, variant=early, name="early exit"),
            note=f"assistant_early_exit={row.exit_layer}",
            is_slow=True,
        ),
        Contender(
            name="prompt lookup",
            arm=StockArm(model, variant=lookup, name="prompt lookup"),
            note=f"prompt_lookup_num_tokens={LOOKUP_TOKENS}",
        ),
    ]


def own_plain(loaded: LoadedModel) -> Contender:
    """Plain decoding."""
    return Contender(
        name=OWN_PLAIN, arm=EngineArm(OWN_PLAIN, Engine(Target(loaded.model), loaded.tokenizer)), holder="own"
    )


def own_plan(plain: Contender, row: Row) -> Contender:
    """The plan on plain decoding's target; one that does not fit gives its reason."""
    engine = engine_of(plain)
    assert engine is not None, "plain decoding has an engine"
    try:
        drafting = Engine(engine.target, engine.tokenizer, row.plan, dict(row.arrays))
    except SelfspecError as error:
        return Contender(name=OWN_PLAN, reason=str(error), holder="own")
    note = ", ".join(part for part in (row.plan.describe(), row.plan_name) if part)
    return Contender(name=OWN_PLAN, arm=EngineArm(OWN_PLAN, drafting), note=note, holder="own")


def _kept(model: PreTrainedModel) -> PreTrainedModel:
    """The same modules under a generation config of their own, to hang what is compiled on."""
    twin = copy.copy(model)
    twin.generation_config = GenerationConfig()
    return twin


def engine_of(contender: Contender) -> Engine | None:
    """The engine behind a contender, if there is one."""
    engine: Any = getattr(contender.arm, "engine", None)
    return engine if isinstance(engine, Engine) else None


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Ends what runs in it after so long.

    Raises:
        CompileTimeoutError: It did.
    """

    def end(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise CompileTimeoutError

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
