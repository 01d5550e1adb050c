"""The model as the user had it: what ``transformers`` loads, before selfspec repacked anything."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from selfspec_runtime.errors import SelfspecError
from selfspec_runtime.loading import load_model
from selfspec_runtime.memory import weight_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from selfspec_runtime.loading import LoadedModel

#: Free memory that a second copy needs, in units of the weights: the copy, and room to work.
NEEDED_MEMORY = 1.3
#: Where Linux says how much memory can be had.
MEMORY_TABLE = Path("/proc/meminfo")
STOCK_ATTENTIONS = ("sdpa", "eager")


def stock_model(loaded: LoadedModel) -> tuple[PreTrainedModel, tuple[str, ...]]:
    """A second copy with stock layers and stock attention, where the first one was repacked.

    Args:
        loaded: The model that selfspec decodes with.

    Returns:
        The model to measure ``generate`` on, and what the user should know, one sentence each. Where memory does
        not allow a copy it is the repacked model, which makes ``generate`` look faster than it was.
    """
    if loaded.identity is None:
        return loaded.model, ()
    if _free_bytes() < NEEDED_MEMORY * weight_bytes(loaded.model):
        return loaded.model, ("Memory does not allow an unpacked copy: transformers is measured on repacked weights",)
    for attention in STOCK_ATTENTIONS:
        spec = loaded.spec.model_copy(update={"pack": False, "attn_implementation": attention})
        try:
            return load_model(spec).model, ()
        except SelfspecError:
            continue
    return loaded.model, ("No unpacked copy could be loaded: transformers is measured on repacked weights",)


def _free_bytes() -> float:
    """Memory that can be had, a cache of files that would make way included; infinite where nobody says."""
    try:
        table = MEMORY_TABLE.read_text(encoding="ascii", errors="replace")
    except OSError:
        table = ""
    available = re.search(r"^MemAvailable:\s+(\d+) kB", table, re.MULTILINE)
    return _free_pages_bytes() if available is None else float(available[1]) * 1024


def _free_pages_bytes() -> float:
    """Memory that nothing uses at all."""
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError, AttributeError):
        return float("inf")
