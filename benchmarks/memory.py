"""Peak resident memory of contenders, in a process that holds nothing but their weights."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfspec_runtime.errors import SelfspecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.contenders import Contender

    from selfspec_calibrate.measurement import MeasuredPrompt
    from selfspec_runtime.engine import GenerationSettings

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
HOLDERS = ("transformers", "own", "llama")
TOKENS = 16
UNMEASURED = ("compiled",)
"""Compiling again would take longer than all the rest."""


def peak_bytes() -> int | None:
    """The most that this process has held since the last :func:`reset_peak`; None where the system does not say."""
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB$", STATUS.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return None
    return None if found is None else int(found[1]) * 1024


def reset_peak() -> None:
    """Starts a new peak at what is held now, where the system allows it."""
    try:
        CLEAR.write_text("5", encoding="utf-8")
    except OSError:
        return


def peaks(
    contenders: Sequence[Contender], prompt: MeasuredPrompt, settings: GenerationSettings
) -> dict[str, int | None]:
    """What each held at most while it decoded a few tokens, one after the other.

    Args:
        contenders: All of one process; what an earlier one keeps, such as a copy of weights, stays.
        prompt: What they decode.
        settings: How; only the length is cut.
    """
    short = replace(settings, max_new_tokens=min(settings.max_new_tokens, TOKENS))
    found: dict[str, int | None] = {}
    for contender in contenders:
        if contender.arm is None or contender.name in UNMEASURED:
            continue
        reset_peak()
        try:
            contender.arm.measure(prompt, short)
        except SelfspecError:
            continue
        found[contender.name] = peak_bytes()
    return found


def as_json(loading: int | None, found: dict[str, int | None]) -> dict[str, Any]:
    """For the record."""
    return {"loading_peak_bytes": loading, "peak_bytes": found}
