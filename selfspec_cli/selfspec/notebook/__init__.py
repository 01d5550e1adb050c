"""Views for notebooks: one widget each, with a script-free page and plain text for where no widget runs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from selfspec.notebook.calibration_view import CalibrationView as CalibrationView
    from selfspec.notebook.exit_depth_view import ExitDepthView as ExitDepthView
    from selfspec.notebook.what_if import WhatIf as WhatIf

_HOMES = {"CalibrationView": "calibration_view", "ExitDepthView": "exit_depth_view", "WhatIf": "what_if"}

__all__ = ["CalibrationView", "ExitDepthView", "WhatIf"]


def __getattr__(name: str) -> Any:
    # Late, so that the magics work up to the first view where the widgets' package is missing.
    home = _HOMES.get(name)
    if home is None:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
