"""Puts a view's script and style together from the files beside this module: nothing is fetched, nothing is built."""

from __future__ import annotations

import re
from importlib import resources

from selfspec.views.style import CSS

_EXPORT = re.compile(r"^export (?!default)", re.MULTILINE)


def script(name: str) -> str:
    """One ES module: the shared functions, then the view.

    Args:
        name: The view's file in ``static``, without its ending.
    """
    return f"{_EXPORT.sub('', _read('shared.js'))}\n{_EXPORT.sub('', _read(f'{name}.js'))}"


def style() -> str:
    """The static views' style sheet, and what only widgets need."""
    return f"{CSS}\n{_read('widget.css')}"


def _read(name: str) -> str:
    return (resources.files("selfspec.notebook") / "static" / name).read_text(encoding="utf-8")
