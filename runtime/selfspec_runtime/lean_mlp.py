"""The gated MLP of the Llama kind with fused projections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from torch import nn
from torch.nn import functional

from selfspec_runtime.fast_linear import fused
from selfspec_runtime.native.linear import KernelLinear
from selfspec_runtime.native.operations import gated_mlp

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
        if self.is_on_kernels and norm.weight.dtype == hidden_states.dtype:
            gate_up, down = (cast("KernelLinear", linear) for linear in (self.gate_up_proj, self.down_proj))
            if gate_up.fits(hidden_states) and down.dtype == hidden_states.dtype:
                return gated_mlp(hidden_states, norm.described, gate_up=gate_up.matrix, down=down.matrix)
        gate, up = self.gate_up_proj(norm(hidden_states)).chunk(2, dim=-1)
        out: Tensor = self.down_proj(functional.silu(gate).mul_(up))
        return out
