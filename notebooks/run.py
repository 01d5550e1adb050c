"""Runs the notebooks beside this file and keeps their outputs: ``make notebooks``.

python notebooks/run.py [NAME ...] [--set NAME=VALUE ...] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
from nbclient import NotebookClient

from selfspec_runtime.atomic import write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HERE = Path(__file__).parent
TIMEOUT_S = 1800
WIDGET = "application/vnd.jupyter.widget-view+json"


def run(source: Path, *, values: Mapping[str, str], folder: Path = HERE) -> Any:
    """Runs one notebook.

    Args:
        source: The notebook.
        values: What the cell tagged ``parameters`` assigns instead, as Python source, by name.
        folder: Where it runs; its own folder by default.

    Returns:
        The notebook with its outputs, and with the parameters that its file has.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell failed.
    """
    notebook = nbformat.read(source, as_version=4)
    written = [cell.source for cell in notebook.cells]
    for cell in notebook.cells:
        if "parameters" in cell.metadata.get("tags", ()):
            cell.source = with_values(cell.source, values)
    NotebookClient(
        notebook, timeout=TIMEOUT_S, kernel_name="python3", resources={"metadata": {"path": folder}}
    ).execute()
    for cell, text in zip(notebook.cells, written, strict=True):
        cell.source = text
        cell.metadata.pop("execution", None)
        if "outputs" in cell:
            cell.outputs = joined(without_widgets(cell.outputs))
    notebook.metadata.pop("widgets", None)
    return notebook


def with_values(source: str, values: Mapping[str, str]) -> str:
    """The parameters' cell with other values for those that it has."""
    for name, value in values.items():
        line = f"{name} = {value}"
        source = re.sub(rf"^{name} = .*$", lambda _, line=line: line, source, flags=re.MULTILINE)
    return source


def without_widgets(outputs: Sequence[Any]) -> list[Any]:
    """What shows without a kernel: a view's page, not its widget, and no progress bars."""
    return [each for each in outputs if WIDGET not in each.get("data", {}) or "text/html" in each.data]


def joined(outputs: Sequence[Any]) -> list[Any]:
    """Neighbouring pieces of one stream as one output, without lines that only a terminal overwrites."""
    kept: list[Any] = []
    for output in outputs:
        if kept and output.output_type == kept[-1].output_type == "stream" and output.name == kept[-1].name:
            kept[-1].text += output.text
        else:
            kept.append(output)
    return kept


def main() -> None:
    """Runs what was asked for, by default all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="without the ending; all by default")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="another parameter")
    parser.add_argument("--out", type=Path, default=HERE, help="where to write them")
    given = parser.parse_args()
    names = given.names or [path.stem for path in sorted(HERE.glob("*.ipynb"))]
    values = dict(each.split("=", 1) for each in given.set)
    for name in names:
        sys.stderr.write(f"{name} ...\n")
        text = nbformat.writes(run(HERE / f"{name}.ipynb", values=values))
        write_atomically(given.out / f"{name}.ipynb", f"{text.rstrip()}\n".encode())


if __name__ == "__main__":
    main()
