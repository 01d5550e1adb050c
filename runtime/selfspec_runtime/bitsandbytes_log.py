"""Keeps one line of bitsandbytes' log back, and nothing else of it."""

from __future__ import annotations

import logging

LOGGER = "bitsandbytes.backends.cpu.ops"
_NEEDLESS = "Failed to load CPU gemm_4bit_forward"


def hush_missing_kernel() -> None:
    """Drops what bitsandbytes says, once it is imported on a CPU with AVX512_BF16, of a kernel from the hub.

    The kernel is optional, nothing here fetches code from the network, and four-bit weights run on the own kernels or
    on those that bitsandbytes brings.
    """
    logging.getLogger(LOGGER).addFilter(_is_needed)


def _is_needed(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_NEEDLESS)
