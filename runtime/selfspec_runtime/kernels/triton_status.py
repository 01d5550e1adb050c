"""Whether Triton's kernels can be used here."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

import torch

SWITCH = "SELFSPEC_TRITON"


@dataclass(frozen=True)
class TritonStatus:
    """Whether kernels can be launched.

    Attributes:
        is_usable: Whether they can, as far as is known without a CUDA device.
        reason: Why they cannot.
    """

    is_usable: bool
    reason: str = ""


def has_triton() -> bool:
    """Whether Triton's kernels can be used; torch's operators serve where they cannot."""
    return triton_status().is_usable


@cache
def triton_status() -> TritonStatus:
    """Looks for Triton, and on a CUDA device tries it: a first launch needs a C compiler and Python's headers."""
    if os.environ.get(SWITCH, "") == "0":
        return TritonStatus(False, f"{SWITCH}=0 is set")
    if find_spec("triton") is None:
        return TritonStatus(False, "Triton is not installed")
    return _tried() if torch.cuda.is_available() else TritonStatus(True)


def _tried() -> TritonStatus:
    errors: tuple[type[Exception], ...] = (RuntimeError, OSError, ImportError, subprocess.SubprocessError)
    try:
        from triton.errors import TritonError

        errors = (*errors, TritonError)
        from selfspec_runtime.kernels.operators import greedy_tokens

        greedy_tokens(torch.zeros(1, 16, device="cuda"))
    except torch.OutOfMemoryError:
        raise
    except errors as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        return TritonStatus(False, f"a kernel cannot be launched: {first}")
    return TritonStatus(True)
