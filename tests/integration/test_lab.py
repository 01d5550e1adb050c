"""The widgets in a real JupyterLab and a real Notebook, driven by a real browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("playwright")
pytest.importorskip("jupyterlab")

from playwright.sync_api import expect
from tests.support.browser import keep, needs_browser, running_browser
from tests.support.calibrations import QUANTIZED, calibration, evidence, memory_step
from tests.support.lab import do, run_all, running_lab, set_theme
from tests.support.saved_models import save_model

from selfspec_runtime.calibration_store import save_calibration
from selfspec_runtime.fingerprint import fingerprint
from selfspec_runtime.model_spec import ModelSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Locator, Page
    from tests.support.lab import Lab

pytestmark = [needs_browser, pytest.mark.slow, pytest.mark.xdist_group("lab")]

CELLS = (
    "%load_ext selfspec\n%selfspec load best.json",
    "%%selfspec --max-new-tokens 60 --temperature 0\nabc abc abc",
    "%selfspec show best.json",
    "from selfspec.notebook import WhatIf\nWhatIf(trace, model.calibration)",
)
#: However fast the machine, a text of this cell's model takes minutes: it is to be interrupted.
SLOW = """import time
from selfspec_runtime.decoder import Decoder
decode = Decoder._round
Decoder._round = lambda self, *given, **named: (time.sleep(0.01), decode(self, *given, **named))[1]"""
LONG = "%%selfspec --max-new-tokens 30000 --temperature 1\nabc"
NUM_LAYERS = 6


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pictures")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab(tmp_path_factory.mktemp("lab")) as lab:
        folder = save_model(lab.folder / "tiny", num_hidden_layers=NUM_LAYERS, max_position_embeddings=32768)
        save_calibration(lab.folder / "best.json", _calibration(folder), {})
        lab.write("work.ipynb", CELLS)
        yield lab


def _calibration(folder: Path) -> Any:
    import selfspec

    known = {
        "agreement_by_exit": (0.2, 0.3, 0.5, 0.7, 0.9),
        "attention_sensitivity": (0.8, 0.9, 0.85, 0.9, 0.95, 0.7),
        "mlp_sensitivity": (0.5, 0.6, 0.7, 0.8, 0.75, 0.65),
    }
    exit_plan = {"source": {"kind": "early_exit", "exit_layer": 4}}
    return calibration(
        memory_step(exit_plan),
        memory_step(QUANTIZED, name="quantized", extra_bytes=80_000_000, speedup=1.6),
        evidence=evidence().model_copy(update=known),
        fingerprint=fingerprint(selfspec.load(folder).loaded),
        model=ModelSpec(model=str(folder)),
    )


@pytest.fixture(scope="module")
def page(lab: Lab, browser: Browser, pictures: Path) -> Iterator[Page]:
    """The notebook, run to its end."""
    page = lab.opened(browser, "lab/tree/work.ipynb")
    try:
        run_all(page)
        expect(widget(page, "Measure this setting")).to_have_count(1)
        yield page
    finally:
        keep(page, "lab-at-the-end", pictures)
        page.context.close()


def widget(page: Page, holding: str) -> Locator:
    return page.locator(".ss-widget", has_text=holding)


def test_each_widget_renders_and_nothing_else_does(page: Page) -> None:
    for holding in ("Layers by tokens", "By extra memory", "Measure this setting"):
        expect(widget(page, holding)).to_be_visible()
    assert page.locator(".ss-widget").count() == 3
    assert page.locator(".ss:not(.ss-widget):not(.ss-widget .ss)").count() == 0, "a page stands beside its widget"
    assert page.locator("text=Error displaying widget").count() == 0


def test_pointer_and_keyboard_open_the_card(page: Page, pictures: Path) -> None:
    view = widget(page, "Layers by tokens")
    card = view.locator(".ss-card")
    tokens = view.locator("bdi.ss-t")
    tokens.nth(3).hover()
    expect(card.locator("h3")).to_have_text(f"Token {tokens.nth(3).text_content()}")
    tokens.nth(0).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(card).to_contain_text("Likeliest tokens after each layer")
    expect(card.locator("h3")).to_contain_text("(pinned)")
    assert card.locator("tbody tr").count() == NUM_LAYERS
    keep(page, "lab-card", pictures)
    page.keyboard.press("Escape")
    expect(card.locator("h3")).not_to_contain_text("(pinned)")
    assert page.locator(".jp-Notebook .jp-Cell").count() == len(CELLS), "no key reached the notebook"


def test_sliders_change_numbers(page: Page) -> None:
    view = widget(page, "Measure this setting")
    numbers, seen = view.locator(".ss-facts").first, set()
    for slider, key in ((0, "ArrowLeft"), (1, "ArrowRight"), (0, "Home")):
        seen.add(numbers.text_content())
        view.locator("input[type=range]").nth(slider).press(key)
    seen.add(numbers.text_content())
    assert len(seen) == 4
    expect(view.locator("output").first).to_have_text("1")


def test_the_button_measures_for_real_and_draws_the_point(page: Page, pictures: Path) -> None:
    view = widget(page, "Measure this setting")
    before = view.locator("svg rect.ss-b").count()
    view.get_by_role("button", name="Measure this setting").click()
    expect(view).to_contain_text(re.compile(r"Measured: \d+\.\d\dx \(.*mirrored blocks on this trace's prompt"))
    assert view.locator("svg rect.ss-b").count() == before + 1
    view.scroll_into_view_if_needed()
    keep(page, "lab-measured", pictures)
    view.get_by_role("button", name="Measure this setting").click()
    view.get_by_role("button", name="Stop").click()
    expect(view).to_contain_text("Stopped; nothing is kept.")


def test_another_amount_of_memory_is_looked_at(page: Page) -> None:
    view = widget(page, "By extra memory")
    expect(view.locator("h1")).to_contain_text("1.25x")
    view.get_by_text("quantized: 80 MB more").click()
    expect(view.locator("h1")).to_contain_text("1.60x")


@pytest.mark.parametrize("theme", ["Dark", "Light"])
def test_both_themes(page: Page, pictures: Path, theme: str) -> None:
    set_theme(page, theme)
    for name, holding in (
        ("exit-depth", "Layers by tokens"),
        ("calibration", "By extra memory"),
        ("what-if", "Measure this setting"),
    ):
        view = widget(page, holding)
        ground, ink = view.evaluate(_COLOURS)
        assert (sum(ground) < sum(ink)) == (theme == "Dark"), (name, ground, ink)
        view.scroll_into_view_if_needed()
        keep(page, f"lab-{name}-{theme.lower()}", pictures)


_COLOURS = """(element) => {
  const inner = element.matches(".ss") ? element : element.querySelector(".ss");
  const { color, backgroundColor } = getComputedStyle(inner);
  return [backgroundColor, color].map((words) => words.match(/\\d+/g).slice(0, 3).map(Number));
}"""


def test_the_reopened_notebook_shows_pages_where_no_kernel_runs(
    lab: Lab, page: Page, browser: Browser, pictures: Path
) -> None:
    do(page, "docmanager:save")
    page.wait_for_function("() => !document.querySelector('.jp-mod-dirty')")
    saved = lab.read("work.ipynb")
    kinds = [set(output.data) for cell in saved.cells for output in cell.outputs if "data" in output]
    assert kinds.count({"text/html", "text/plain"}) == 3
    lab.write_again("reopened.ipynb", saved)
    other = lab.opened(browser, "lab/tree/reopened.ipynb?reset")
    do(other, "notebook:shutdown-kernel", wait_for=".jp-Notebook .jp-Cell")
    for words in ("How deep the model had to go", "By extra memory", "What an early exit would bring"):
        expect(other.locator(".jp-OutputArea").get_by_text(words).first).to_be_visible()
    assert other.locator(".ss-widget").count() == 0
    assert other.get_by_text("Error displaying widget").locator("visible=true").count() == 0
    for number, output in enumerate(other.locator(".jp-RenderedHTMLCommon .ss").all()):
        output.scroll_into_view_if_needed()
        keep(other, f"lab-reopened-{number}", pictures)
    other.context.close()


def test_a_cell_streams_and_can_be_interrupted(lab: Lab, browser: Browser, pictures: Path) -> None:
    lab.write("long.ipynb", [CELLS[0], SLOW, LONG])
    page = lab.opened(browser, "lab/tree/long.ipynb?reset")
    run_all(page)
    stream = page.locator(".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.stdout']").last
    expect(stream).to_be_visible()
    lengths = "(least) => [...document.querySelectorAll('.jp-RenderedText')].some((e) => e.textContent.length > least)"
    page.wait_for_function(lengths, arg=100)
    first = len(stream.text_content() or "")
    page.wait_for_function(lengths, arg=first + 100)
    do(page, "notebook:interrupt-kernel")
    expect(page.get_by_text("(interrupted)")).to_be_visible()
    expect(widget(page, "Layers by tokens")).to_be_visible()
    keep(page, "lab-interrupted", pictures)
    page.context.close()


def test_notebook_7_shows_the_same(lab: Lab, page: Page, browser: Browser, pictures: Path) -> None:
    pytest.importorskip("notebook")
    do(page, "docmanager:save")
    classic = lab.opened(browser, "notebooks/work.ipynb")
    run_all(classic)
    view = widget(classic, "Layers by tokens")
    expect(view).to_be_visible()
    expect(widget(classic, "Measure this setting")).to_be_visible()
    view.locator("bdi.ss-t").nth(2).hover()
    expect(view.locator(".ss-card h3")).to_contain_text("Token")
    keep(classic, "notebook-7", pictures)
    classic.context.close()
