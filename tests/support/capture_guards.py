"""Modes that forbid, on any device, what a CUDA graph cannot hold, and that write down what a step launches.

A function mode sees what Python asks of tensors (``tolist``, ``bool(t)``, slices by tensors), a dispatch mode what
reaches the kernels. Neither alone sees everything: on a CPU ``item()`` of a small tensor need not be dispatched, and
a copy between devices is an argument that only the dispatcher knows.
"""

from __future__ import annotations

import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Methods and functions of Python that read a tensor, or make one from what Python holds.
HOST_READS = frozenset(
    {
        "item", "tolist", "numpy", "__array__", "__bool__", "__int__", "__float__", "__index__", "__complex__",
        "__contains__", "__format__", "__repr__", "__dlpack__", "cpu", "cuda", "pin_memory", "nonzero", "argwhere",
        "masked_select", "unique", "equal", "allclose", "is_nonzero", "resize_",
    }
)  # fmt: skip
FROM_HOST = frozenset({"tensor", "as_tensor", "from_numpy", "frombuffer"})
#: Operators that read a tensor to know what to do, beside those that are tagged as such.
READING_OPERATORS = frozenset(
    {
        "_local_scalar_dense", "item", "is_nonzero", "equal", "allclose", "nonzero", "argwhere", "masked_select",
        "_unique2", "unique_dim", "unique_consecutive", "resize_", "set_", "bincount", "_to_cpu", "pin_memory",
        "_pin_memory", "_assert_async", "record_stream",
    }
)  # fmt: skip
#: Tagged as depending on data, and judged here by their arguments instead.
JUDGED_BY_ARGUMENTS = frozenset({"index", "index_put", "index_put_", "_unsafe_index", "_index_put_impl_"})
COPIES = frozenset({"copy_", "_to_copy", "to"})
_MACHINERY = ("/torch/", "capture_guards.py")


class HostReadError(AssertionError):
    """A step did what cannot be captured; the message names the call and the line."""


class PythonGuard(TorchFunctionMode):
    """Forbids what Python does with a tensor's value."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func))
        if name in HOST_READS:
            _refuse(f"Tensor.{name} reads on the host")
        if name in FROM_HOST and not (args and isinstance(args[0], Tensor)):
            _refuse(f"torch.{name} makes a tensor from host data")
        if name == "where" and len(args) == 1:
            _refuse("where(condition) has a size that depends on data")
        if name in ("__getitem__", "__setitem__"):
            _check_index(args[1])
        return func(*args, **kwargs)


class DispatchGuard(TorchDispatchMode):
    """Forbids operators that read, that depend on data, that draw, or that leave the device.

    Args:
        device: Type of the one device that a step may use.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        self._check(func, name, args, kwargs)
        out = func(*args, **kwargs)
        for made in tree_leaves(out):
            if isinstance(made, Tensor) and made.device.type != self.device:
                _refuse(f"{func} leaves the device for {made.device}")
        return out

    def _check(self, func: Any, name: str, args: Any, kwargs: Any) -> None:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        depends = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags)
        if name in READING_OPERATORS or (depends and name not in JUDGED_BY_ARGUMENTS):
            _refuse(f"{func} reads on the host or has a size that depends on data")
        if name in JUDGED_BY_ARGUMENTS and any(_is_mask(leaf) for leaf in tree_leaves(args[1])):
            _refuse(f"{func} by a boolean mask has a size that depends on data")
        if name.startswith("lift_fresh") or name == "lift":
            _refuse(f"{func} makes a tensor from host data")
        if torch.Tag.nondeterministic_seeded in func.tags and "scaled_dot_product" not in name:
            _refuse(f"{func} draws from a generator")
        if name == "repeat_interleave" and kwargs.get("output_size") is None and "Tensor" in func._overloadname:
            _refuse(f"{func} has a size that depends on data")
        if any(tensor.device.type != self.device for tensor in tensors):
            _refuse(f"{func} takes tensors of {sorted({t.device.type for t in tensors})}")


class OperatorTrace(TorchDispatchMode):
    """Writes down every operator with shapes and Python arguments.

    Attributes:
        operators: One entry per operator.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[tuple[str, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        described = tuple((tuple(x.shape), x.dtype) if isinstance(x, Tensor) else repr(x) for x in leaves)
        self.operators.append((str(func), described))
        return func(*args, **kwargs)


@contextmanager
def capture_guard(device: str) -> Iterator[None]:
    """Raises `HostReadError` at the first thing that cannot be captured; to be used under ``no_grad``."""
    with PythonGuard(), DispatchGuard(device):
        yield


def _is_mask(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dtype in (torch.bool, torch.uint8)


def _check_index(index: Any) -> None:
    for part in index if isinstance(index, tuple) else (index,):
        if _is_mask(part):
            _refuse("indexing by a boolean mask has a size that depends on data")
        bounds = (part.start, part.stop, part.step) if isinstance(part, slice) else ()
        if any(isinstance(bound, Tensor) for bound in bounds):
            _refuse("slicing by a tensor reads it on the host")


def _refuse(what: str) -> None:
    frames = [f for f in traceback.extract_stack() if not any(part in f.filename for part in _MACHINERY)]
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "?"
    message = f"{what} at {where}"
    raise HostReadError(message)
