"""What the parts of a round cost on their own, and the speedup that they would allow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from benchmarks.steps import filled

from selfspec_calibrate.timing import timer_for
from selfspec_runtime.drafts.passes import PassSource
from selfspec_runtime.drafts.source import RoundContext
from selfspec_runtime.memory import weight_bytes
from selfspec_runtime.processors import Processors
from selfspec_runtime.rules import make_rule
from selfspec_runtime.sampling import SamplingSettings
from selfspec_runtime.sequence import Sequence
from selfspec_runtime.stubs import SkippedLayer

if TYPE_CHECKING:
    from selfspec_runtime.engine import Engine


@dataclass(frozen=True, kw_only=True)
class RoundParts:
    """Seconds of single passes, the device waited for, nothing else in between.

    Attributes:
        plain_s: A plain step.
        draft_s: One pass of the draft.
        verify_s: The verification of a whole draft.
        num_draft_tokens: Its tokens.
        draft_bytes: Weights that a draft pass reads.
    """

    plain_s: float
    draft_s: float
    verify_s: float
    num_draft_tokens: int
    draft_bytes: int

    def ideal(self, tokens_per_round: float) -> float:
        """``E / (num_draft_tokens * c + v)``: the speedup over plain decoding if nothing else took time.

        Args:
            tokens_per_round: Tokens that a round emitted on average.
        """
        costs = (self.num_draft_tokens * self.draft_s + self.verify_s) / self.plain_s
        return tokens_per_round / costs

    def as_json(self) -> dict[str, Any]:
        """For the record."""
        return {
            **vars(self),
            "c": self.draft_s / self.plain_s,
            "v": self.verify_s / self.plain_s,
            "draft_bytes_per_s": self.draft_bytes / self.draft_s,
        }


def round_parts(engine: Engine, *, positions: int, passes: int) -> RoundParts | None:
    """Times the passes that a round is made of.

    Args:
        engine: Drafts with passes of its own model; for others there is nothing to time.
        positions: Positions in the cache.
        passes: Times that each is timed, in turn; medians count.
    """
    source, target = engine.source, engine.target
    if not isinstance(source, PassSource):
        return None
    ids, cache = filled(target, positions + engine.plan.max_draft_tokens + 2)
    sequence = Sequence(ids[: positions + 1].tolist(), device=target.device)
    rule, controller = make_rule(SamplingSettings(), Processors()), engine.decoder.controller
    controller.reset()
    source.reset()
    context = RoundContext(sequence, cache, rule, controller, controller.budget(), engine.plan.max_draft_tokens)
    draft = source.propose(context)
    last = ids[positions : positions + 1]
    tasks = (
        lambda: target.logits(last, cache, start=positions, keep=1),
        lambda: target.logits(last, cache, start=positions, program=source.program, keep=1),
        lambda: engine.decoder.verifier.verify(sequence, draft, cache),
    )
    with torch.no_grad():
        plain_s, draft_s, verify_s = timer_for(target.device, repeats=passes)(tasks)
    return RoundParts(
        plain_s=plain_s,
        draft_s=draft_s,
        verify_s=verify_s,
        num_draft_tokens=len(draft),
        draft_bytes=draft_weight_bytes(source),
    )


def draft_weight_bytes(source: PassSource) -> int:
    """Bytes of the weights of the layers and the head that a draft pass runs."""
    program, parts = source.program, source.target.parts
    head = program.head if program.head is not None else parts.head
    modules = [
        module for module in (*program.modules, head) if module is not None and not isinstance(module, SkippedLayer)
    ]
    return sum({id(module): weight_bytes(module) for module in modules}.values())
