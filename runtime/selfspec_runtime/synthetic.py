"""A scripted acceptance, which costs a shape whose weights mean nothing: the text is not the model's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from selfspec_runtime.acceptance import Verdict
from selfspec_runtime.law import greedy_tokens
from selfspec_runtime.noise import Stream, uniform_scalar
from selfspec_runtime.rules import GreedyRule

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec_runtime.drafts.draft import Draft
    from selfspec_runtime.processors import Processors
    from selfspec_runtime.sampling import SamplingSettings


class SyntheticRule(GreedyRule):
    """Lets each draft token stand with one probability, whatever the target says; then comes the target's likeliest.

    All that a round costs is still paid: draft passes, verification, the reading of the target's logits. Which
    tokens stand depends on the seed and on their positions only, so that two plans meet the same luck.

    Args:
        settings: The seed; the choice of tokens is greedy.
        processors: As for every rule.
        acceptance: The probability, 0 to 1.
    """

    is_scripted = True

    def __init__(self, settings: SamplingSettings, processors: Processors, *, acceptance: float) -> None:
        super().__init__(settings, processors)
        self.acceptance = acceptance

    def _decided(self, draft: Draft, logits: Tensor, position: int) -> Verdict:
        chosen = greedy_tokens(logits)
        num_accepted = 0
        while num_accepted < len(draft) and self._stands(position + num_accepted):
            num_accepted += 1
        return Verdict(num_accepted, int(chosen[num_accepted]))

    def _stands(self, position: int) -> bool:
        return uniform_scalar(self.settings.seed, position, Stream.ACCEPT) < self.acceptance
