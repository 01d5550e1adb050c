"""Whether Triton's kernels run in its interpreter."""

from __future__ import annotations

import sys


def is_interpreted() -> bool:
    """Whether kernels were imported under ``TRITON_INTERPRET=1``, and so run on CPU tensors."""
    kernels = sys.modules.get("selfspec_runtime.kernels.tiles")
    return kernels is not None and type(kernels.keys_of).__name__ == "InterpretedFunction"
