"""Linear layers of a float32 model whose weights are all bfloat16 numbers, which half the memory holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from selfspec_runtime.native.linear import DenseLinear

if TYPE_CHECKING:
    from torch import Tensor

#: Rows that are looked at together, so that looking takes little memory.
_ROWS = 1024


class HalvedLinear(DenseLinear):
    """A float32 linear layer on bfloat16 weights: it computes in float32, and reads half as much.

    Checkpoints are mostly published in bfloat16, so that most models that are loaded in float32 are of this kind.
    Products of float32 inputs with such weights are summed in float32; nothing is rounded to bfloat16.

    Args:
        weight: ``[out, in]`` bfloat16, on a CPU.
        bias: ``[out]`` or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__(bias, torch.float32)
        self.out_features, self.in_features = weight.shape
        # No parameter: a model's dtype is that of its parameters, and this model's is float32.
        self.register_buffer("weight", weight)

    def dense_weight(self) -> Tensor:
        """The weight, ``[out, in]``, in the dtype of the hidden states; made anew at every call in float32."""
        return self.weight.to(self.dtype)

    @property
    def packed_bytes(self) -> int:
        """Memory of the weight."""
        return self.weight.numel() * self.weight.element_size()

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Saves what was loaded."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = self.dense_weight()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        """Takes other weights over; those that bfloat16 cannot hold are kept whole."""
        found = state_dict.get(f"{prefix}weight")
        if found is not None and not can_be_halved(found.float()):
            self.weight = torch.empty_like(self.weight, dtype=self.dtype)
        super()._load_from_state_dict(state_dict, prefix, *rest)


def can_be_halved(weight: Tensor) -> bool:
    """Whether every value of a float32 ``[out, in]`` weight is a bfloat16 number."""
    parts = torch.split(weight.detach(), _ROWS)
    return weight.dtype == torch.float32 and all(torch.equal(part.bfloat16().float(), part) for part in parts)
