"""Exceptions at chosen points of a run, and what must not have changed after them."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

HOOK_NAMES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Fault(Exception):
    """Thrown by a test, so that nothing but the test may catch it."""


def module_tree(model: nn.Module) -> list[tuple[Any, ...]]:
    """Names and identities of every module, parameter and buffer, with the hooks and the own attributes."""
    modules = [
        (name, id(module), type(module), tuple(tuple(getattr(module, hooks)) for hooks in HOOK_NAMES))
        for name, module in model.named_modules(remove_duplicate=False)
    ]
    attributes = [(name, frozenset(vars(module))) for name, module in model.named_modules()]
    tensors = [
        (name, id(tensor), tensor._version)
        for named in (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
        for name, tensor in named
    ]
    return [*modules, *attributes, *tensors]


class CallCounter:
    """Counts calls and throws at one of them.

    Args:
        fail_at: Number of the call that throws, from 0; None for none.
    """

    def __init__(self, fail_at: int | None = None) -> None:
        self.fail_at = fail_at
        self.count = 0

    def __call__(self) -> None:
        """Counts one call."""
        number, self.count = self.count, self.count + 1
        if number == self.fail_at:
            raise Fault(f"call {number}")


def faulty(function: Callable[..., Any], counter: CallCounter) -> Callable[..., Any]:
    """The function, counted before each call."""

    def counted(*args: Any, **kwargs: Any) -> Any:
        counter()
        return function(*args, **kwargs)

    return counted


@contextmanager
def interrupted(at: int | None) -> Iterator[list[int]]:
    """Raises KeyboardInterrupt where Python would deliver Ctrl-C, at the given one of these points.

    The interpreter looks for signals when a function starts and when a call returns, which is where the profiler
    is told; only functions of this project and what they call directly count.

    Args:
        at: Number of the point, from 0; None to count them only.

    Yields:
        A list whose only entry is the number of points so far.
    """
    points = [0]

    def watch(frame: Any, event: str, _argument: Any) -> None:
        caller = frame if event.startswith("c_") else frame.f_back
        if "selfspec_runtime" not in (frame.f_code.co_filename + (caller.f_code.co_filename if caller else "")):
            return
        if event in ("call", "return", "c_return"):
            number, points[0] = points[0], points[0] + 1
            if number == at:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(watch)
    try:
        yield points
    finally:
        sys.setprofile(None)
