"""The notebooks run from their first cell to their last, on a tiny model, and their committed outputs are whole."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import pytest

pytest.importorskip("nbclient")
pytest.importorskip("anywidget")

from tests.support.calibrations import calibration, evidence, memory_step
from tests.support.html_checks import assert_harmless
from tests.support.saved_models import save_model

from selfspec_runtime.calibration_store import save_calibration
from selfspec_runtime.fingerprint import fingerprint
from selfspec_runtime.model_spec import ModelSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
NAMES = [path.stem for path in sorted(NOTEBOOKS.glob("*.ipynb"))]
HOSTED_LIMIT = 1_000_000

sys.path.insert(0, str(NOTEBOOKS))
from run import joined, run, with_values, without_widgets  # noqa: E402


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Parameters that make every notebook take seconds."""
    import selfspec

    folder = tmp_path_factory.mktemp("notebooks")
    model = save_model(folder / "tiny", num_hidden_layers=4)
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": f"abc {n} abc"}) + "\n" for n in range(12)))
    known = evidence().model_copy(update={"agreement_by_exit": (0.2, 0.4, 0.8)})
    found = calibration(
        memory_step(),
        evidence=known,
        fingerprint=fingerprint(selfspec.load(model).loaded),
        model=ModelSpec(model=str(model)),
    )
    save_calibration(folder / "best.json", found, {})
    paths = {"MODEL": model, "PROMPTS": folder / "prompts.jsonl", "CALIBRATION": folder / "best.json"}
    return {
        **{name: repr(str(path)) for name, path in paths.items()},
        "BUDGET": '"5s"',
        "NEW_TOKENS": "8",
        "EXIT_LAYER": "2",
    }


def outputs_of(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_notebooks_run(name: str, tiny: Mapping[str, str], tmp_path: Path) -> None:
    values = {**tiny, "PAGE": repr(str(tmp_path / "page.html"))}
    if name == "quickstart":
        values["CALIBRATION"] = repr(str(tmp_path / "found.json"))
    notebook = run(NOTEBOOKS / f"{name}.ipynb", values=values, folder=tmp_path)
    streams = [output for output in outputs_of(notebook) if output.output_type == "stream"]
    assert not any("Error" in output.text for output in streams), [output.text for output in streams]
    assert any("text/html" in output.get("data", ()) for output in outputs_of(notebook))
    assert [cell.source for cell in notebook.cells] == [
        cell.source for cell in nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells
    ]


@pytest.mark.parametrize("name", NAMES)
def test_committed_outputs_are_whole_and_harmless(name: str) -> None:
    path = NOTEBOOKS / f"{name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert path.stat().st_size < HOSTED_LIMIT, "code hosts refuse to render larger ones"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), "run as a whole, in order"
    views = [
        output.data["text/html"]
        for output in outputs_of(notebook)
        if "ss-" in output.get("data", {}).get("text/html", "")
    ]
    assert views
    for html in views:
        assert_harmless(html)
    texts = json.dumps(notebook)
    assert not any(trace in texts for trace in ("/root/", "/home/", f"{NOTEBOOKS.parent}/", "Traceback"))


def test_another_value_replaces_only_its_own_line() -> None:
    source = 'MODEL = "a"\nMODEL_NAME = "b"\nBUDGET = "1m"'
    assert with_values(source, {"MODEL": '"c"', "OTHER": "1"}) == 'MODEL = "c"\nMODEL_NAME = "b"\nBUDGET = "1m"'


def test_pieces_of_one_stream_become_one() -> None:
    make = nbformat.v4.new_output
    pieces = [("stdout", "a"), ("stdout", "b"), ("stderr", "c"), ("stdout", "d")]
    outputs = joined([make("stream", name=name, text=text) for name, text in pieces])
    assert [(output.name, output.text) for output in outputs] == [("stdout", "ab"), ("stderr", "c"), ("stdout", "d")]


def test_progress_bars_and_widgets_without_a_state_are_left_out() -> None:
    make, widget = nbformat.v4.new_output, {"application/vnd.jupyter.widget-view+json": {"model_id": "1"}}
    kept = [make("display_data", {"text/html": "page"}), make("stream", name="stdout", text="a")]
    assert (
        without_widgets([make("display_data", {**widget, "text/plain": "bar"}), *kept, make("display_data", widget)])
        == kept
    )
