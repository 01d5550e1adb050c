"""Linear layers that run on the kernels for a few rows, and on torch for a long block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from selfspec_runtime.errors import UsageError
from selfspec_runtime.native.library import SUFFIXES, native_status
from selfspec_runtime.native.matrix import BLOCK, NativeMatrix, nibbles_of
from selfspec_runtime.native.operations import fits, linear, num_rows
from selfspec_runtime.native.row_groups import in_rows

if TYPE_CHECKING:
    from torch import Tensor


class KernelLinear(nn.Module, ABC):
    """A linear layer whose weight is described to the kernels.

    Args:
        bias: ``[out]`` or None.
        dtype: Of the hidden states.
    """

    def __init__(self, bias: Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.bias = as_parameter(bias, dtype)
        self._dtype = dtype

    @property
    def dtype(self) -> torch.dtype:
        """Of the hidden states; it follows a conversion of the model."""
        return self._dtype

    @property
    @abstractmethod
    def matrix(self) -> NativeMatrix:
        """The weight as the kernels read it."""

    @abstractmethod
    def dense_weight(self) -> Tensor:
        """The weight, ``[out, in]``, in the dtype of the hidden states."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Maps ``[..., in]`` to ``[..., out]``."""
        if self.fits(hidden_states):
            return linear(hidden_states, self.matrix)
        return functional.linear(hidden_states, self.dense_weight(), self.bias)

    def fits(self, hidden_states: Tensor) -> bool:
        """Whether the kernels take these ``[..., in]``: they read memory as they are told, unchecked."""
        own = fits(num_rows(hidden_states), hidden_states.dtype, hidden_states.device)
        return own and self.matrix.dtype == hidden_states.dtype

    def __getstate__(self) -> dict[str, Any]:
        """Addresses are nothing to copy."""
        return {name: value for name, value in self.__dict__.items() if name != "_matrix"}

    def __setattr__(self, name: str, value: Any) -> None:
        """Replaces a weight, too."""
        super().__setattr__(name, value)
        self._expire()

    def _apply(self, *given: Any, **named: Any) -> Any:
        """Moves or converts the weights, which may become other tensors."""
        self._dtype = given[0](torch.empty(0, dtype=self._dtype)).dtype
        moved: Any = super()._apply(*given, **named)  # type: ignore[no-untyped-call]
        self._expire()
        return moved

    def _expire(self) -> None:
        held: NativeMatrix | None = self.__dict__.pop("_matrix", None)
        if held is not None:
            held.expire()


class DenseLinear(KernelLinear):
    """A linear layer whose weight is one row-major tensor, whatever holds its numbers.

    Attributes:
        weight: ``[out, in]``.
    """

    weight: Tensor

    @property
    def matrix(self) -> NativeMatrix:
        """The weight as the kernels read it; described anew when its memory has moved."""
        held: NativeMatrix | None = self.__dict__.get("_matrix")
        if held is None or held.has_moved():
            weight, bias = self.weight, self.bias
            owners = (weight,) if bias is None else (weight, bias)
            held = NativeMatrix(weight.data.contiguous(), _data(bias), dtype=self.dtype, owners=owners)
            self.__dict__["_matrix"] = held
        return held


class NativeLinear(DenseLinear):
    """A dense linear layer on the weight as torch holds it: nothing is packed, and a tied matrix stays shared.

    Args:
        weight: ``[out, in]``, float32 or bfloat16, on a CPU.
        bias: ``[out]`` or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__(bias, weight.dtype)
        self.out_features, self.in_features = weight.shape
        self.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight, requires_grad=False)

    @property
    def dtype(self) -> torch.dtype:
        """That of the weight, which may have been replaced."""
        return self.weight.dtype

    def dense_weight(self) -> Tensor:
        """The weight, ``[out, in]``."""
        return self.weight.data


class FourBitLinear(KernelLinear):
    """A linear layer in bitsandbytes' four-bit formats (blocks of 64 weights with one scale), without bitsandbytes.

    Args:
        codes: ``[out, in / 4]`` int16, as ``four_bit_codes`` lays them out; ``in`` a multiple of 64.
        scales: ``[out, in / 64]`` float32, in the same groups of rows.
        levels: The values of the sixteen codes, float32.
        bias: ``[out]`` or None.
        dtype: Of the hidden states.
    """

    codes: Tensor
    scales: Tensor
    levels: Tensor

    def __init__(
        self, codes: Tensor, *, scales: Tensor, levels: Tensor, bias: Tensor | None, dtype: torch.dtype
    ) -> None:
        super().__init__(bias, dtype)
        self.out_features, self.in_features = codes.shape[0], codes.shape[1] * 4
        self.register_buffer("codes", codes, persistent=False)
        self.register_buffer("scales", scales, persistent=False)
        self.register_buffer("levels", levels, persistent=False)

    @property
    def matrix(self) -> NativeMatrix:
        """The weight as the kernels read it."""
        held: NativeMatrix | None = self.__dict__.get("_matrix")
        if held is None:
            held = NativeMatrix(self.codes, _data(self.bias), scales=self.scales, levels=self.levels, dtype=self.dtype)
            self.__dict__["_matrix"] = held
        return held

    def _apply(self, *given: Any, **named: Any) -> Any:
        """Moves codes, scales and levels, which a conversion of the model leaves as they are."""
        exact = self.scales, self.levels
        moved = super()._apply(*given, **named)
        self.scales, self.levels = (held.to(self.codes.device) for held in exact)
        return moved

    def nibbles(self) -> Tensor:
        """The codes, ``[out, in]`` uint8."""
        return nibbles_of(self.codes)

    def dense_weight(self) -> Tensor:
        """The weight as its codes say, ``[out, in]``."""
        values = self.levels[self.nibbles().long()].view(self.out_features, -1, BLOCK)
        dense: Tensor = (values * in_rows(self.scales, 1)[:, :, None]).flatten(1).to(self.dtype)
        return dense

    @property
    def packed_bytes(self) -> int:
        """Memory of codes and scales; a bias is the original's."""
        return int(self.codes.numel() * 2 + self.scales.numel() * 4)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Refuses: no other program could read these codes."""
        del destination, keep_vars
        message = (
            f"{prefix}weight was laid out for this CPU and cannot be saved. Load the model with pack=False to save it."
        )
        raise UsageError(message)


def is_native(linear: nn.Module) -> bool:
    """Whether a module is exactly a plain linear layer that the kernels can run here."""
    if type(linear) is not nn.Linear:
        return False
    at_hand = linear.weight.device.type == "cpu" and linear.weight.dtype in SUFFIXES and linear.weight.is_contiguous()
    return at_hand and native_status().kernels is not None


def as_parameter(bias: Tensor | None, dtype: torch.dtype) -> nn.Parameter | None:
    """A bias as it is where it has the dtype, else a copy that has."""
    if bias is None or (isinstance(bias, nn.Parameter) and bias.dtype == dtype):
        return bias
    return nn.Parameter(bias.detach().to(dtype), requires_grad=False)


def _data(bias: nn.Parameter | None) -> Tensor | None:
    return None if bias is None else bias.data
