"""Keeps libraries from writing between a command's own lines."""

from __future__ import annotations

import logging
import os
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

DEBUG_VARIABLE = "SELFSPEC_DEBUG"


def debugging() -> bool:
    """Whether the user asked to see everything, tracebacks included."""
    return os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Hides progress bars, warnings and log lines of libraries, unless SELFSPEC_DEBUG=1."""
    if debugging():
        yield
        return
    from transformers.utils import logging as transformers_logging

    bars, level = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()
