"""A linear layer packed for a CPU's matrix units.

A decode step on a CPU multiplies one row by matrices of about a megabyte, where the stock routine reaches a
third of the memory bandwidth, and in float32 takes twice as long for two rows as for one. oneDNN's packed form
reaches most of it, and costs and rounds the same for 1 to 8 rows once rows are padded to a tile's height.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from selfspec_runtime.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

#: Rows are padded to this height, so that a verification costs and rounds as single steps do.
TILE_ROWS = 4

#: Number of rows that oneDNN is told to expect; it chooses the packed layout by it.
EXPECTED_ROWS = 8

PACKABLE = (torch.float32, torch.bfloat16)


class PackedLinear(nn.Module):
    """A linear layer whose weight is packed by oneDNN.

    Args:
        weight: ``[out, in]`` in float32 or bfloat16, on a CPU; it is copied into the packed form.
        bias: ``[out]`` or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), EXPECTED_ROWS)
        self.register_buffer("packed", packed, persistent=False)
        self.register_buffer("bias", None if bias is None else bias.detach(), persistent=False)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Maps ``[..., in]`` to ``[..., out]``."""
        rows = hidden_states.reshape(-1, self.in_features)
        count = rows.shape[0]
        if count < TILE_ROWS:
            rows = functional.pad(rows, (0, 0, 0, TILE_ROWS - count))
        out: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, "none", [], "")
        return out[:count].view(*hidden_states.shape[:-1], self.out_features)

    @property
    def packed_bytes(self) -> int:
        """Bytes of the packed weight and the bias."""
        held: list[Any] = [tensor for tensor in (self.packed, self.bias) if tensor is not None]
        return sum(tensor.numel() * tensor.element_size() for tensor in held)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Refuses: a checkpoint of packed weights could be read by nobody, and one without them would be random."""
        del destination, keep_vars
        message = (
            f"{prefix}weight was repacked for this CPU and cannot be saved. Load the model with pack=False to save it."
        )
        raise UsageError(message)

    def dense_weight(self) -> Tensor:
        """The weight as it was, ``[out, in]``."""
        packed: Any = self.packed
        dense: Tensor = packed.to_dense()
        return dense


def is_packable(linear: nn.Module) -> bool:
    """Whether a module is exactly a plain linear layer (subclasses mean something else) that can be packed."""
    has_onednn: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if type(linear) is not nn.Linear or not has_onednn:
        return False
    return linear.weight.device.type == "cpu" and linear.weight.dtype in PACKABLE
