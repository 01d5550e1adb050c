"""Triton's interpreter at a usable speed.

Triton patches its language again at every call of a device function, which takes far longer than the call. In a
test process where every kernel is interpreted, patching once is the same.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import pytest


def is_asked_for() -> bool:
    """Whether this process was started with ``TRITON_INTERPRET=1``."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def require() -> None:
    """Run kernels interpreted from here on; skips the test in a process that compiles them."""
    if not is_asked_for():
        pytest.skip("the kernels are compiled in this process")
    patch_once()


@cache
def patch_once() -> None:
    """Make the interpreter patch its language once for each set of language modules."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang
    seen: set[frozenset[int]] = set()

    def patch_unseen(function: Any) -> _NothingToRestore:
        known = {id(value) for value in function.__globals__.values()}
        used = frozenset(known & {id(interpreter.tl), id(interpreter.tl.core)})
        if used not in seen:
            seen.add(used)
            patch(function)
        return _NothingToRestore()

    interpreter._patch_lang = patch_unseen


class _NothingToRestore:
    def restore(self) -> None:
        """The patches stay."""
