"""RMSNorm as one operation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn import functional

from selfspec_runtime.native.operations import NormWeight

if TYPE_CHECKING:
    from torch import Tensor


class LeanNorm(nn.Module):
    """RMSNorm as one operation.

    Args:
        norm: The original; its weight is shared.
    """

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight = norm.weight
        self.eps: float = norm.variance_epsilon

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Normalises the last dimension."""
        return functional.rms_norm(hidden_states, self.weight.shape, self.weight, self.eps)

    @property
    def described(self) -> NormWeight:
        """The norm as the kernels take it."""
        return NormWeight(self.weight, self.eps)


def norm_weight(norm: Any) -> NormWeight:
    """A stock RMSNorm as the kernels take it."""
    return NormWeight(norm.weight, norm.variance_epsilon)
