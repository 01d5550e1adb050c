"""Says in one line where and why a step could not be recorded."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from types import FrameType, TracebackType

_ERRORS = (RuntimeError, TypeError, ValueError, AttributeError, IndexError, KeyError, AssertionError)
_OWN = Path(__file__).parent
_MAX_REASON = 160


class NotRecordableError(Exception):
    """A step could not be recorded; rounds go on eagerly, so that nobody outside ever sees this."""


def recording_errors() -> tuple[type[Exception], ...]:
    """What a step raises that cannot be recorded: the device refuses, or code of the family expects numbers."""
    triton = sys.modules.get("triton.errors")  # loaded before one of its errors can be raised
    return _ERRORS if triton is None else (*_ERRORS, triton.TritonError)


def describe_failure(error: BaseException) -> str:
    """For example ``layer 3 (LlamaAttention), modeling_llama.py:210: dynamic shape``.

    Args:
        error: What was raised while recording.
    """
    reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return f"{_place(error.__traceback__)}{reason[:_MAX_REASON]}"


def _place(trace: TracebackType | None) -> str:
    frames = [(frame, line) for frame, line in traceback.walk_tb(trace) if not _is_machinery(frame)]
    if not frames:
        return ""
    frame, line = frames[-1]
    module = next((found for f, _ in reversed(frames) if (found := _layer_of(f)) is not None), "")
    return f"{module}{Path(frame.f_code.co_filename).name}:{line}: "


def _is_machinery(frame: FrameType) -> bool:
    path = Path(frame.f_code.co_filename)
    return "torch" in path.parts or path.parent == _OWN


def _layer_of(frame: FrameType) -> str | None:
    """The innermost module that knows its layer's index."""
    module = frame.f_locals.get("self")
    index = getattr(module, "layer_idx", None)
    if not isinstance(module, nn.Module) or not isinstance(index, int):
        return None
    return f"layer {index} ({type(module).__name__}), "
