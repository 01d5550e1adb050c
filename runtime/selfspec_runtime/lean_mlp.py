"""The gated MLP of the Llama kind with fused projections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from torch import nn
from torch.nn import functional

from selfspec_runtime.fast_linear import fused
from selfspec_runtime.native.linear import KernelLinear
from selfspec_runtime.native.operations import fits, gated_mlp

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec_runtime.lean_norm import LeanNorm
    from selfspec_runtime.weight_arena import WeightArena


class LeanMLP(nn.Module):
    """A gated SiLU MLP with one projection for gate and up.

    Args:
        mlp: The original MLP.
        arena: Where its projections are copied to.
    """

    def __init__(self, mlp: Any, arena: WeightArena) -> None:
        super().__init__()
        self.gate_up_proj = fused([mlp.gate_proj, mlp.up_proj], arena)
        self.down_proj = fused([mlp.down_proj], arena)

    @property
    def is_on_kernels(self) -> bool:
        """Whether the projections are such as the kernels take."""
        return isinstance(self.gate_up_proj, KernelLinear) and isinstance(self.down_proj, KernelLinear)

    def forward(self, hidden_states: Tensor, *, norm: LeanNorm) -> Tensor:
        """Maps the normed ``[1, n, hidden]`` to the same shape."""
        rows = hidden_states.shape[0] * hidden_states.shape[1]
        if self.is_on_kernels and fits(rows, hidden_states.dtype, hidden_states.device):
            gate_up, down = (cast("KernelLinear", linear).matrix for linear in (self.gate_up_proj, self.down_proj))
            return gated_mlp(hidden_states, norm.described, gate_up=gate_up, down=down)
        gate, up = self.gate_up_proj(norm(hidden_states)).chunk(2, dim=-1)
        out: Tensor = self.down_proj(functional.silu(gate).mul_(up))
        return out
