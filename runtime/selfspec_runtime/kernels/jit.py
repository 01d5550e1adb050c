"""The decorator of every kernel, with a type that mypy can follow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def kernel(function: Callable[..., Any], *, unspecialized: Sequence[str] = ()) -> Any:
    """Return the Triton kernel (or, called from another kernel, device function) of a function.

    With ``TRITON_INTERPRET=1`` set before the import it runs in Triton's interpreter, on CPU tensors.

    Args:
        function: Its body.
        unspecialized: Arguments that no variant is compiled for: neither for a 1 nor for multiples of 16.
    """
    return triton.jit(function, do_not_specialize=list(unspecialized))
