"""Where kernels are launched: on the device of the tensors that they are given."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import torch

# Not only for types: torch reads the operators' schemas from strings, and looks them up here.
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

Given = ParamSpec("Given")
Made = TypeVar("Made")


def on_its_device(function: Callable[Given, Made]) -> Callable[Given, Made]:
    """Makes the device of the first tensor the current one while a function runs; nothing changes on a CPU.

    Triton launches on the current device, which is another one than the tensors' for a model on ``cuda:1``.
    """

    @wraps(function)
    def placed(*args: Given.args, **kwargs: Given.kwargs) -> Made:
        tensor = next(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        with torch.cuda.device_of(tensor):  # type: ignore[no-untyped-call]
            return function(*args, **kwargs)

    return placed
