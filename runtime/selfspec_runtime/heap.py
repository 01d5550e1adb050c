"""The C library's heap."""

from __future__ import annotations

import ctypes
import sys


def return_freed_memory() -> None:
    """Gives freed memory back to the system; does nothing where the C library is not glibc.

    What is freed piece by piece leaves holes that glibc keeps: after repacking a small float32 model the process held
    a third more than its weights, and after scoring hundreds of drafts of a 135M model, whose logits take megabytes,
    ten times as much.
    """
    if not sys.platform.startswith("linux"):
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
