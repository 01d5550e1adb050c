"""The plan's entry for drafting ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from selfspec_runtime.drafts.early_exit import EarlyExitSpec
from selfspec_runtime.drafts.first_of import FirstOfSource
from selfspec_runtime.drafts.lookahead import LooksAhead
from selfspec_runtime.drafts.quantized import QuantizedSpec
from selfspec_runtime.drafts.skipped import LayerSkipSpec
from selfspec_runtime.errors import PlanError
from selfspec_runtime.schedulers.ahead import AheadScheduler
from selfspec_runtime.schedulers.gate import AheadGate
from selfspec_runtime.schedulers.lookup_preparer import LookupPreparer
from selfspec_runtime.schedulers.scheduler import SchedulerSpec
from selfspec_runtime.schedulers.second_device import SecondDevicePreparer, copy_to

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from selfspec_runtime.drafts.source import DraftSource
    from selfspec_runtime.plan import DraftPlan
    from selfspec_runtime.schedulers.preparer import Preparer
    from selfspec_runtime.target import Target


class SaguaroSpec(SchedulerSpec):
    """Plan entry for drafting while the target verifies.

    Attributes:
        num_outcomes: Outcomes of a verification to prepare for.
        miss_exponent: How fast misses get rarer with more guesses at a token (the paper's ``r``).
        min_gain: Speed over drafting in turn, by measured times and hits, below which it is switched off.
        draft_device: A second device, such as ``cuda:1``, for a copy of the model that drafts; None for lookups,
            which are prepared on the CPU.
    """

    kind: Literal["saguaro"] = "saguaro"
    num_outcomes: int = Field(default=8, ge=1, le=256)
    miss_exponent: float = Field(default=1.0, gt=0.0, le=8.0)
    min_gain: float = Field(default=1.03, ge=0.0, le=10.0)
    draft_device: str | None = None

    def build(
        self, target: Target, source: DraftSource, plan: DraftPlan, arrays: Mapping[str, Tensor]
    ) -> AheadScheduler:
        """Makes the scheduler; with a second device the model is copied there."""
        if self.draft_device is None:
            preparer: Preparer = LookupPreparer(_lookup(source), plan.max_draft_tokens)
        else:
            preparer = _second_device(self.draft_device, target, plan, arrays)
        gate = AheadGate(min_gain=self.min_gain)
        return AheadScheduler(preparer, gate, num_outcomes=self.num_outcomes, miss_exponent=self.miss_exponent)

    def describe(self) -> str:
        """For example ``prepared for 8 outcomes``."""
        place = f" on {self.draft_device}" if self.draft_device is not None else ""
        return f"prepared for {self.num_outcomes} outcomes{place}"


def _lookup(source: DraftSource) -> LooksAhead:
    first = source.sources[0] if isinstance(source, FirstOfSource) else source
    if not isinstance(first, LooksAhead):
        message = (
            "This plan drafts with passes of the model, which cannot run beside a verification on the same device. "
            "Name a draft_device for a copy of the model, draft with a lookup, or leave the scheduler out."
        )
        raise PlanError(message)
    return first


def _second_device(
    device_name: str, target: Target, plan: DraftPlan, arrays: Mapping[str, Tensor]
) -> SecondDevicePreparer:
    spec = plan.source
    if not isinstance(spec, EarlyExitSpec | LayerSkipSpec | QuantizedSpec):
        what = "A plan without a source" if spec is None else f"'{spec.describe()}'"
        message = (
            f"{what} cannot be drafted on a second device: early exits, skip sets and quantised copies can. Choose "
            "one of these, leave draft_device out if the plan begins with a lookup, or leave the scheduler out."
        )
        raise PlanError(message)
    copied = copy_to(target, device_name)
    held = sum(t.numel() * t.element_size() for t in (*copied.model.parameters(), *copied.model.buffers()))
    source = spec.build(copied, arrays)
    return SecondDevicePreparer(source, plan.max_draft_tokens, home=target.device, copied_bytes=held)
