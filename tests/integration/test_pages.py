"""Report, saved trace and exported notebooks in a browser that has no network: all shows, nothing is asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("playwright")
pytest.importorskip("anywidget")

from axe_core_python.sync_playwright import Axe
from tests.support.browser import keep, needs_browser, running_browser
from tests.support.calibrations import QUANTIZED, calibration, evidence, kind_result, memory_step
from tests.support.saved_models import save_model
from tests.support.traces import HOSTILE, made_up_trace
from tests.support.widget_page import widget_page

from selfspec.cli.__main__ import main
from selfspec.notebook import CalibrationView, ExitDepthView, WhatIf
from selfspec.views.calibration_html import calibration_page
from selfspec.views.exit_depth_html import exit_depth_page
from selfspec.views.token_text import running, with_whole_characters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

    from selfspec_runtime.calibration import Calibration

pytestmark = [needs_browser, pytest.mark.slow, pytest.mark.xdist_group("lab")]

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
WORDS = [f" word{n}" if n % 9 else f" line{n}\n" for n in range(40)]
NARROW_DESK = {"width": 1000, "height": 800}
PHONE = {"width": 390, "height": 800}
DESK = {"width": 1100, "height": 900}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as browser:
        yield browser


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Any]:
    """Opens HTML or a file without network; ``page.asked`` lists what was asked for beside the page itself."""
    contexts = []

    def open_page(content: str | Path, *, dark: bool = False, size: Any = DESK) -> Page:
        path = content if isinstance(content, Path) else tmp_path / "page.html"
        if isinstance(content, str):
            path.write_text(content)
        context = browser.new_context(viewport=size, color_scheme="dark" if dark else "light", offline=True)
        contexts.append(context)
        page: Any = context.new_page()
        page.asked = []
        page.on("request", lambda request: page.asked.append(request.url))
        page.faults = []
        page.on("pageerror", lambda error: page.faults.append(str(error)))
        page.on("dialog", lambda dialog: page.faults.append(dialog.message))
        page.goto(path.as_uri())
        return page  # type: ignore[no-any-return]

    yield open_page
    for context in contexts:
        context.close()


def complete() -> Calibration:
    """A calibration with everything that a report can show."""
    known = {
        "agreement_by_exit": tuple(0.05 + 0.9 * (n / 11) ** 2 for n in range(1, 12)),
        "agreement_by_linear_exit": tuple(0.2 + 0.7 * n / 11 for n in range(1, 12)),
        "attention_sensitivity": tuple(0.95 - 0.03 * (n % 5) for n in range(12)),
        "mlp_sensitivity": tuple(0.9 - 0.05 * (n % 4) for n in range(12)),
    }
    base = calibration(
        memory_step(),
        memory_step(QUANTIZED, name="quantized", extra_bytes=80_000_000, speedup=1.6),
        evidence=evidence().model_copy(update=known),
    )
    return base.model_copy(update={"fingerprint": base.fingerprint.model_copy(update={"num_hidden_layers": 12})})


def pages() -> dict[str, str]:
    trace = made_up_trace(WORDS)
    return {"report": calibration_page(complete()), "trace": exit_depth_page(trace)}


def widgets(*, dark: bool) -> dict[str, str]:
    trace = made_up_trace(WORDS)
    views = {
        "exit-depth": (ExitDepthView(trace), "el.querySelector('bdi.ss-t').focus()"),
        "calibration": (CalibrationView(complete()), ""),
        "what-if": (WhatIf(trace, complete(), measure=lambda _: iter(())), ""),
    }
    return {name: widget_page(view, script=script, dark=dark) for name, (view, script) in views.items()}


def faults_of(page: Page) -> list[str]:
    """Serious and critical faults, with the first place of each."""
    found = Axe().run(page)["violations"]
    return [
        f"{each['id']}: {each['help']} at {each['nodes'][0]['html'][:200]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]


def test_axe_finds_what_is_wrong(opened: Any) -> None:
    page = opened("<title>x</title><img src='data:,'><p style='color:#ccc;background:#fff'>pale</p>")
    assert {fault.split(":")[0] for fault in faults_of(page)} >= {"image-alt", "color-contrast"}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["report", "trace"])
def test_pages_have_no_serious_accessibility_fault(opened: Any, tmp_path: Path, name: str, dark: bool) -> None:
    page = opened(pages()[name], dark=dark)
    page.locator("summary").evaluate_all("(all) => all.forEach((each) => each.click())")
    keep(page, f"{name}-{'dark' if dark else 'light'}", tmp_path, whole=True)
    assert faults_of(page) == []
    assert len(page.asked) == 1


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["exit-depth", "calibration", "what-if"])
def test_widgets_have_no_serious_accessibility_fault(opened: Any, tmp_path: Path, name: str, dark: bool) -> None:
    page = opened(widgets(dark=dark)[name], dark=dark)
    page.wait_for_selector("body[data-done]", state="attached")
    keep(page, f"widget-{name}-{'dark' if dark else 'light'}", tmp_path, whole=True)
    assert faults_of(page) == []
    assert page.faults == []


@pytest.mark.parametrize("name", ["report", "trace"])
def test_a_phone_scrolls_tables_and_not_the_page(opened: Any, tmp_path: Path, name: str) -> None:
    page = opened(pages()[name], size=PHONE)
    keep(page, f"{name}-phone", tmp_path, whole=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


@pytest.mark.parametrize("name", ["report", "trace"])
def test_nothing_needs_scrolling_on_a_narrow_desk(opened: Any, tmp_path: Path, name: str) -> None:
    page = opened(pages()[name], size=NARROW_DESK)
    keep(page, f"{name}-narrow", tmp_path, whole=True)
    tables = page.locator(".ss-scroll:has(table)")
    assert tables.count() > 0
    hidden = tables.evaluate_all("(all) => all.map((each) => each.scrollWidth - each.clientWidth)")
    assert max(hidden) <= 0


def test_hostile_tokens_are_only_text_in_every_page_and_widget(opened: Any, tmp_path: Path) -> None:
    trace = made_up_trace(HOSTILE)
    shown = [running(piece) for piece in with_whole_characters(HOSTILE)]
    nasty = HOSTILE[0]
    named = complete().model_copy(
        update={"steps": (memory_step().model_copy(update={"results": (kind_result(nasty), kind_result())}),)}
    )
    view = ExitDepthView(trace)
    replies = {json.dumps({"kind": "candidates", "token": 1}, separators=(",", ":")): view.candidates(1)}
    pin = "el.querySelectorAll('bdi.ss-t')[1].click();"
    for content in (
        exit_depth_page(trace),
        widget_page(view, script=pin, replies=replies),
        view._repr_mimebundle_()[0]["text/html"],
    ):
        page = opened(content)
        texts = page.locator("bdi.ss-t").all_text_contents()
        assert texts == shown
        assert page.evaluate("document.querySelectorAll('bdi *, bdi script, .ss script').length") == 0
        assert page.faults == []
    keep(page, "hostile", tmp_path, whole=True)
    for content in (
        calibration_page(named),
        widget_page(CalibrationView(named)),
        widget_page(WhatIf(trace, complete())),
    ):
        page = opened(content)
        page.wait_for_load_state("load")
        assert page.faults == []
        assert page.locator("main script, #place script").count() == 0
    assert opened(calibration_page(named)).get_by_text(nasty).count() > 0


@pytest.mark.parametrize("seed", range(2))
def test_what_the_widget_shows_adds_up_to_the_runs_stats(opened: Any, seed: int) -> None:
    trace = made_up_trace(WORDS, seed=seed)
    stats = trace.stats()
    page = opened(widget_page(ExitDepthView(trace)))
    page.wait_for_selector("body[data-done]", state="attached")
    rows = page.locator("section:has(h2:text-is('Rounds')) tbody tr").all()
    cells = [[int(cell) for cell in row.locator("th,td").all_text_contents()[:3]] for row in rows]
    assert sum(drafted for _, drafted, _ in cells) == stats.num_draft_tokens
    assert [accepted for *_, accepted in cells] == stats.num_accepted_tokens_per_pos
    strip = page.locator(".ss-pick")
    assert strip.count() == stats.num_rounds
    assert strip.locator("rect.ss-a").count() == stats.num_accepted_tokens
    assert strip.locator("rect.ss-b").count() == stats.num_emitted_tokens - stats.num_accepted_tokens
    assert strip.locator("rect.ss-hollow").count() == stats.num_draft_tokens - stats.num_accepted_tokens
    counts = [page.locator(f"bdi.ss-t.ss-f{number}").count() for number in range(5)]
    assert counts[1] == stats.num_accepted_tokens
    assert sum(counts[1:]) == stats.num_emitted_tokens


def test_the_commands_files_ask_for_nothing(opened: Any, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "tiny")
    arguments = ["inspect", "--model", str(folder), "--draft", "early-exit", "--exit-layer", "1", "--prompt", "abc"]
    assert main([*arguments, "--max-new-tokens", "20", "-o", str(tmp_path / "trace.html")]) == 0
    page = opened(tmp_path / "trace.html")
    for heading in ("The text", "Rounds", "Layers by tokens"):
        assert page.get_by_role("heading", name=heading).is_visible()
    assert page.asked == [(tmp_path / "trace.html").as_uri()]


@pytest.mark.parametrize("name", [path.stem for path in sorted(NOTEBOOKS.glob("*.ipynb"))])
def test_exported_notebooks_ask_for_nothing(opened: Any, tmp_path: Path, name: str) -> None:
    pytest.importorskip("nbconvert")
    command = [
        sys.executable, "-m", "nbconvert", "--to", "html", "--template", "selfspec",
        f"--TemplateExporter.extra_template_basedirs={NOTEBOOKS / 'templates'}",
        "--embed-images", "--output-dir", str(tmp_path), str(NOTEBOOKS / f"{name}.ipynb"),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    page = opened(tmp_path / f"{name}.html")
    assert page.asked == [(tmp_path / f"{name}.html").as_uri()]
    assert page.faults == []
    keep(page, f"export-{name}", tmp_path, whole=True)
    views = page.locator(".jp-OutputArea .ss")
    assert views.count() > 0
    assert all(view.is_visible() for view in views.all())
    words = page.locator(".ss table.ss-w1 td:nth-child(2)")
    aligned = words.evaluate_all("(all) => all.map((each) => getComputedStyle(each).textAlign)")
    assert set(aligned) <= {"start"}, "the notebook's own rules turn text to the right"
    pictures = page.locator("img").evaluate_all("(all) => all.map((each) => each.complete && each.naturalWidth > 0)")
    assert pictures
    assert all(pictures)
