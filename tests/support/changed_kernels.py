"""Copies of the kernels with lines changed, to show that tests notice."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

import selfspec_runtime.kernels


def changed_kernels(
    folder: Path, name: str, *, file: str, changes: Iterable[tuple[str, str, int]], modules: Sequence[str]
) -> list[ModuleType]:
    """Some modules of a copy of the kernels in which texts of one file are replaced.

    Args:
        folder: Where to put the copy.
        name: Name of the copy, a new one each time.
        file: Name of the file without ``.py``.
        changes: Old text, new text, and how often the old one must occur.
        modules: Names of the modules that are wanted.
    """
    package = folder / name
    package.mkdir()
    for source in Path(selfspec_runtime.kernels.__path__[0]).glob("*.py"):
        text = source.read_text(encoding="utf-8").replace("selfspec_runtime.kernels", name)
        for old, new, count in changes if source.stem == file else ():
            assert text.count(old) == count, f"{old!r} occurs {text.count(old)} times in {source.name}"
            text = text.replace(old, new)
        (package / source.name).write_text(text, encoding="utf-8")
    sys.path.insert(0, str(folder))
    try:
        return [importlib.import_module(f"{name}.{module}") for module in modules]
    finally:
        sys.path.remove(str(folder))
