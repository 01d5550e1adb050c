"""Greedy and match rules by the Triton kernels, for steps that are recorded on CUDA.

Rejection sampling stays with torch's operators there: the kernel that draws a draft token takes its place in the
round as a number, and a recorded draft step has it on the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from selfspec_runtime.executors.device_rules import DeviceRule, DeviceVerdict
from selfspec_runtime.kernels import operators
from selfspec_runtime.kernels.row_law import has_top_k, has_top_p, law_params

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec_runtime.sampling import SamplingSettings


class KernelGreedy(DeviceRule):
    """The likeliest token, in two launches a draft and two a verification."""

    def draw(self, logits: Tensor, position: Tensor, *, round_start: Tensor) -> tuple[Tensor, Tensor | None]:
        """Takes the likeliest."""
        del position, round_start
        return operators.greedy_tokens(logits.contiguous()), None

    def decide(self, drafted: Tensor, laws: Tensor | None, logits: Tensor, position: Tensor) -> DeviceVerdict:
        """Compares with the target's likeliest."""
        del laws, position
        return _verdict(operators.greedy_verdict(drafted, logits.contiguous()))


class KernelMatch(DeviceRule):
    """Draft and target share a position's Gumbel noise.

    Args:
        settings: Temperature and filters.
        key: The two words of the seed, ``[2]`` int64.
    """

    def __init__(self, settings: SamplingSettings, key: Tensor) -> None:
        super().__init__(settings, key)
        self._params = law_params(settings, device=key.device)
        self._filters = has_top_k(settings), has_top_p(settings)

    def draw(self, logits: Tensor, position: Tensor, *, round_start: Tensor) -> tuple[Tensor, Tensor | None]:
        """Draws with the shared noise of the position."""
        del round_start
        tokens = operators.shared_tokens(logits.contiguous(), self._params, self._seed(), position, 0, *self._filters)
        return tokens, None

    def decide(self, drafted: Tensor, laws: Tensor | None, logits: Tensor, position: Tensor) -> DeviceVerdict:
        """Compares with what the target draws with the same noise."""
        del laws
        rows = logits.contiguous()
        return _verdict(operators.match_verdict(drafted, rows, self._params, self._seed(), position, *self._filters))

    def _seed(self) -> Tensor:
        return self.key[:1] | (self.key[1:] << 32)


def _verdict(packed: Tensor) -> DeviceVerdict:
    return DeviceVerdict(packed[:1], packed[1:2], packed[2:] != 0)
