"""Resident memory of contenders: the most that is held while one of them decodes."""

from __future__ import annotations

import gc
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from selfspec_runtime.errors import SelfspecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.contenders import Contender

    from selfspec_calibrate.measurement import MeasuredPrompt
    from selfspec_runtime.generation import GenerationSettings

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
TOKENS = 16
UNMEASURED = ("compiled",)
"""The first run of these compiles, which takes more memory than decoding."""


def held_bytes() -> int | None:
    """What this process holds; None where the system does not say."""
    gc.collect()
    return _status("VmRSS")


def peak_bytes() -> int | None:
    """The most that it has held since the last :func:`reset_peak`."""
    return _status("VmHWM")


def reset_peak() -> None:
    """Starts a new peak at what is held now, where the system allows it."""
    try:
        CLEAR.write_text("5", encoding="utf-8")
    except OSError:
        return


def peaks(
    contenders: Sequence[Contender], prompt: MeasuredPrompt, settings: GenerationSettings, *, others: int
) -> dict[str, int]:
    """What the process holds at most while each decodes a few tokens, without what others hold.

    Args:
        contenders: One after the other; what an earlier one keeps, such as packed weights, stays.
        prompt: What they decode.
        settings: How; only the length is cut.
        others: Bytes of weights that are there for other contenders.
    """
    short = replace(settings, max_new_tokens=min(settings.max_new_tokens, TOKENS))
    found: dict[str, int] = {}
    for contender in contenders:
        if contender.arm is None or contender.name in UNMEASURED:
            continue
        reset_peak()
        try:
            contender.arm.measure(prompt, short)
        except SelfspecError:
            continue
        peak = peak_bytes()
        if peak is not None:
            found[contender.name] = peak - others
    return found


def growth(before: int | None) -> int:
    """Bytes that are held beyond what was held before."""
    now = held_bytes()
    return 0 if now is None or before is None else now - before


def _status(name: str) -> int | None:
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB$", STATUS.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return None
    return None if found is None else int(found[1]) * 1024
