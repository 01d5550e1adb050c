from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("anywidget")

from tests.support.calibrations import LINEAR_EXIT, QUANTIZED, calibration, evidence, memory_step
from tests.support.hand_loop import HandLoop
from tests.support.html_checks import assert_harmless, shown_text
from tests.support.tiny_models import planted, prompt_ids, tiny_model
from tests.support.traces import HOSTILE, made_up_trace
from tests.support.widget_page import chromium, final_dom, widget_page

from selfspec.notebook.bundle import script, style
from selfspec.notebook.calibration_view import CalibrationView
from selfspec.notebook.exit_depth_view import ExitDepthView
from selfspec.notebook.measuring import Progress
from selfspec.notebook.what_if import WhatIf
from selfspec_runtime.engine import Engine
from selfspec_runtime.errors import PlanError, UsageError
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.plan import DraftPlan
from selfspec_runtime.target import Target
from selfspec_runtime.token_trace import FATES
from selfspec_runtime.tracing import trace_generation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from selfspec_runtime.calibration import Calibration

PRESS = """
    const key = (name) =>
      document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true }));
"""
VIEWS = ("exit_depth", "calibration", "what_if")
needs_browser = pytest.mark.skipif(chromium() is None, reason="no Chromium")


def evident() -> Calibration:
    known = {"agreement_by_exit": (0.2, 0.4, 0.8), "mlp_sensitivity": (0.5, 0.6, 0.7, 0.8)}
    return calibration(memory_step(), evidence=evidence().model_copy(update=known))


def views() -> list[Any]:
    trace = made_up_trace(HOSTILE, num_layers=4)
    return [ExitDepthView(trace), CalibrationView(evident()), WhatIf(trace, evident())]


def test_one_draft_token_is_said_in_the_singular() -> None:
    hopeless = calibration(evidence=evidence().model_copy(update={"agreement_by_exit": (0.0, 0.0, 0.0)}))
    assert WhatIf(None, hopeless).plain_text().endswith("after layer 1 and 1 draft token.")


@pytest.mark.parametrize(("enabled", "ends"), [(True, "(in use)"), (False, "no gain")])
def test_a_step_that_is_not_enabled_is_not_in_use(enabled: bool, ends: str) -> None:
    assert CalibrationView(calibration(memory_step(enabled=enabled))).steps[0].endswith(ends)


@pytest.mark.parametrize("name", VIEWS)
def test_scripts_load_nothing_and_parse_no_html(name: str) -> None:
    source = script(name) + style()
    assert set(re.findall(r"https?://[^\"' ]+", source)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(
        r"\bimport\b.*from|import\(|innerHTML|outerHTML|insertAdjacentHTML|eval\(|fetch\(|url\(", source
    )
    assert source.count("export default") == 1


@pytest.mark.parametrize("view", views(), ids=VIEWS)
def test_every_view_comes_with_a_page_and_with_text(view: Any) -> None:
    data, _ = view._repr_mimebundle_()
    assert set(data) == {"application/vnd.jupyter.widget-view+json", "text/html", "text/plain"}
    assert_harmless(data["text/html"])
    assert data["text/plain"]
    assert not re.search(r"[\x00-\x08\u202e\ud83d]", data["text/plain"])
    assert f'id="{view.fallback_id}"' in data["text/html"]


@pytest.mark.parametrize("view", views(), ids=VIEWS)
def test_a_view_is_saved_as_one_page(view: Any, tmp_path: Path) -> None:
    view.save_html(tmp_path / "view.html")
    assert_harmless((tmp_path / "view.html").read_text())


def test_shown_in_a_notebook_the_page_has_an_output_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs: list[Any] = []
    monkeypatch.setattr("IPython.display.display", lambda data, **_: outputs.append(set(data)))
    views()[0]._ipython_display_()
    assert outputs == [{"text/html", "text/plain"}, {"application/vnd.jupyter.widget-view+json"}]


def test_arrays_arrive_as_they_are() -> None:
    trace = made_up_trace([f"w{n}" for n in range(37)])
    view = ExitDepthView(trace)
    bits = np.unpackbits(np.frombuffer(view.agree, np.uint8).reshape(trace.num_layers, -1), axis=1)
    assert (bits[:, :37] == trace.layers_agree).all()
    assert view.texts.decode().split("\0") == [f"w{n}" for n in range(37)]
    assert np.frombuffer(view.depths, "<i4").tolist() == trace.settle_depth.tolist()
    rounds = np.frombuffer(view.rounds, "<i4").reshape(-1, 4)
    assert rounds[:, 3].sum() == trace.stats().num_accepted_tokens
    assert rounds[:, 2].sum() == trace.stats().num_draft_tokens


def test_payload_and_page_add_up_to_the_runs_own_stats() -> None:
    plan = DraftPlan.model_validate({"source": {"kind": "early_exit", "exit_layer": 2}})
    engine = Engine(Target(planted(tiny_model("llama"), exit_layer=2, scale=0.3)), plan=plan)
    settings = GenerationSettings(max_new_tokens=60)
    stats = engine.generate(prompt_ids(), settings).stats
    assert 0.2 < (stats.acceptance_rate or 0) < 0.8, "half of the drafts are right"
    view = ExitDepthView(trace_generation(engine, prompt_ids(), settings))
    rounds = np.frombuffer(view.rounds, "<i4").reshape(-1, 4)[1:]
    assert len(rounds) == stats.num_rounds
    assert rounds[:, 1:].sum(axis=0).tolist() == [
        stats.num_emitted_tokens,
        stats.num_draft_tokens,
        stats.num_accepted_tokens,
    ]
    per_place = [int((rounds[:, 3] > place).sum()) for place in range(rounds[:, 2].max())]
    assert per_place == stats.num_accepted_tokens_per_pos
    fates = [FATES[code] for code in view.fates]
    assert fates.count("accepted") == stats.num_accepted_tokens
    assert len(fates) - fates.count("first") == stats.num_emitted_tokens
    for text in (shown_text(str(view.static_html())), view.plain_text(), view.headline):
        assert f"{stats.num_accepted_tokens} of {stats.num_draft_tokens} drafted tokens accepted" in text


def test_two_thousand_tokens_are_stored_in_under_a_megabyte() -> None:
    view = ExitDepthView(made_up_trace([f" word{n}" for n in range(2000)], num_layers=30))
    data, _ = view._repr_mimebundle_()
    state = sum(len(value) for value in view.get_state().values() if isinstance(value, bytes | str))
    assert len(json.dumps(data)) + state * 4 / 3 < 1_000_000


@pytest.mark.parametrize("message", [None, {}, {"kind": "candidates"}, {"kind": "candidates", "token": 99}, "x"])
def test_nonsense_from_the_browser_is_ignored(message: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    view = ExitDepthView(made_up_trace())
    sent: list[Any] = []
    monkeypatch.setattr(view, "send", sent.append)
    view._answer(view, message, [])
    assert sent == []


def test_candidates_are_sent_for_the_token_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = made_up_trace(HOSTILE)
    view = ExitDepthView(trace)
    sent: list[Any] = []
    monkeypatch.setattr(view, "send", sent.append)
    view._answer(view, {"kind": "candidates", "token": 3}, [])
    assert sent == [view.candidates(3)]
    assert len(sent[0]["layers"]) == trace.num_layers
    json.dumps(sent[0], allow_nan=False).encode()


def answers(view: WhatIf, monkeypatch: pytest.MonkeyPatch, *messages: dict[str, Any]) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(view, "send", sent.append)
    for message in messages:
        view._answer(view, message, [])
    return sent


MEASURE = {"kind": "measure", "exitLayer": 2, "numDraftTokens": 3, "threshold": 0}


def test_a_real_measurement_is_asked_of_the_plan_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[DraftPlan] = []

    def measure(plan: DraftPlan) -> Iterator[Progress]:
        asked.append(plan)
        yield Progress(done=0, total=1)
        yield Progress(done=1, total=1, ratios=(1.4, 1.6), speedup=1.5, num_tokens=9)

    sent = answers(WhatIf(None, evident(), measure=measure), monkeypatch, MEASURE)
    assert asked[0].describe() == "exit after layer 2, 3 drafts"
    assert [each["kind"] for each in sent] == ["measuring", "measured"]
    assert "run 1 of 1" in sent[0]["text"]
    assert sent[1]["text"].startswith("Measured: 1.50x (1.40 to 1.60) over plain decoding with exit after layer 2")
    point = {key: sent[1]["point"][key] for key in ("exit_layer", "num_draft_tokens", "speedup")}
    assert point == {"exit_layer": 2, "num_draft_tokens": 3, "speedup": 1.5}


def test_a_threshold_is_measured_but_has_no_place_in_a_picture_of_fixed_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[DraftPlan] = []

    def measure(plan: DraftPlan) -> Iterator[Progress]:
        asked.append(plan)
        yield Progress(done=1, total=1, ratios=(1.5,), speedup=1.5)

    sent = answers(WhatIf(None, evident(), measure=measure), monkeypatch, MEASURE | {"threshold": 0.4})
    assert asked[0].controller.kind == "confidence"
    assert sent[-1]["point"] is None


def test_a_measurement_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: DraftPlan) -> Iterator[Progress]:
        raise PlanError("no such exit")

    def fail(_: DraftPlan) -> Iterator[Progress]:
        yield Progress(done=0, total=2)
        raise PlanError("too late")

    def silent(_: DraftPlan) -> Iterator[Progress]:
        yield Progress(done=1, total=1)

    sent = answers(WhatIf(None, evident(), measure=refuse), monkeypatch, MEASURE, MEASURE | {"exitLayer": "<b>"})
    assert sent[0]["text"] == "It could not be measured: no such exit"
    assert "could not be measured" in sent[1]["text"]
    assert answers(WhatIf(None, evident(), measure=fail), monkeypatch, MEASURE)[-1]["text"].endswith("too late")
    assert "Nothing was timed" in answers(WhatIf(None, evident(), measure=silent), monkeypatch, MEASURE)[-1]["text"]


def test_a_stop_takes_effect_before_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, runs = HandLoop(), []

    def endless(_: DraftPlan) -> Iterator[Progress]:
        while True:
            runs.append(1)
            yield Progress(done=len(runs), total=99)

    view = WhatIf(None, evident(), measure=endless, loop=loop)
    sent = answers(view, monkeypatch, MEASURE)
    assert runs == [], "the browser's message is answered before anything runs"
    assert view.is_measuring
    loop.turn()
    loop.turn()
    sent += answers(view, monkeypatch, MEASURE, {"kind": "stop"})
    loop.turn()
    assert len(runs) == 2
    assert not view.is_measuring
    assert loop.waiting == []


def test_without_a_model_there_is_no_button() -> None:
    assert not WhatIf(made_up_trace(num_layers=4), evident()).can_measure


def test_measured_points_are_the_timed_early_exits() -> None:
    (point,) = WhatIf(None, evident()).measured
    assert (point["exit_layer"], point["num_draft_tokens"], point["speedup"]) == (2, 4, 0.9)
    assert point["what"] == "measured by the calibration, linear head"
    assert LINEAR_EXIT["source"]["exit_layer"] == 2


def test_the_page_of_an_estimate_holds_the_formula_and_what_was_measured() -> None:
    text = shown_text(str(WhatIf(None, evident()).static_html()))
    assert "An estimate, not a measurement: speedup = tokens per round" in text
    assert "exit after layer 2, linear head, 4 drafts1.10x0.90x" in text


def test_a_trace_of_another_model_is_refused() -> None:
    with pytest.raises(UsageError, match="12 layers"):
        WhatIf(made_up_trace(), evident())


@pytest.mark.skipif(shutil.which("node") is None, reason="no node")
@pytest.mark.parametrize("threshold", [0.0, 0.05], ids=["fixed", "confidence"])
def test_the_browsers_replay_counts_what_the_run_counted(threshold: float, tmp_path: Path) -> None:
    controller: dict[str, Any] = {"kind": "fixed", "num_draft_tokens": 3}
    if threshold:
        controller |= {"kind": "confidence", "draft_confidence_threshold": threshold}
    plan = DraftPlan.model_validate({"source": {"kind": "early_exit", "exit_layer": 2}, "controller": controller})
    engine = Engine(Target(planted(tiny_model("llama"), exit_layer=2, scale=0.3)), plan=plan)
    trace = trace_generation(engine, prompt_ids(), GenerationSettings(max_new_tokens=60))
    counts = _replayed(trace, threshold, tmp_path)
    stats = trace.stats()
    if not threshold:
        assert counts["drafted"] == stats.num_draft_tokens
    assert counts["rounds"] == pytest.approx(stats.num_rounds, abs=1 if threshold else 0)
    assert counts["accepted"] == pytest.approx(stats.num_accepted_tokens, abs=1 if threshold else 0)
    assert counts["emitted"] == stats.num_emitted_tokens
    assert counts["seconds"] == pytest.approx(counts["rounds"] + counts["drafted"])


def _replayed(trace: Any, threshold: float, folder: Path) -> Any:
    settings = {"numTokens": trace.num_tokens, "numDraftTokens": 3, "threshold": threshold, "plainSeconds": 1}
    given = json.dumps(settings | {"roundSeconds": [1, 2, 3, 4]})
    agree, sure = json.dumps(trace.layers_agree[1].tolist()), json.dumps(trace.top_probs[1, :, 0].tolist())
    source = script("what_if").replace("export default", "const view =")
    laws = f"const a={agree}, s={sure};"
    call = f"{laws} console.log(JSON.stringify(replay({{...{given}, agree: t => a[t], sure: t => s[t]}})));"
    (folder / "replay.mjs").write_text(source + call)
    done = subprocess.run(["node", folder / "replay.mjs"], capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


def dom_of(view: Any, tmp_path: Path, script: str, **more: Any) -> str:
    page = tmp_path / "page.html"
    page.write_text(widget_page(view, script=script, **more))
    dom = final_dom(page)
    assert 'data-done="yes"' in dom, re.findall(r'data-error="[^"]*"', dom)
    return dom


@needs_browser
def test_hostile_tokens_in_a_browser_and_a_card_by_keyboard(tmp_path: Path) -> None:
    trace = made_up_trace(HOSTILE)
    view = ExitDepthView(trace)
    script = """
    let leaked = 0; document.addEventListener("keydown", () => { leaked += 1; });
    const tokens = [...el.querySelectorAll("bdi.ss-t")];
    tokens[0].focus(); key("ArrowRight"); key("ArrowRight"); key("ArrowRight"); key("Enter");
    const stops = tokens.filter((t) => t.tabIndex === 0).map((t) => tokens.indexOf(t));
    const pressed = tokens.findIndex((t) => t.getAttribute("aria-pressed") === "true");
    const pinned = el.querySelector(".ss-card").textContent;
    key("ArrowRight"); const still = el.querySelector(".ss-card h3").textContent;
    key("Escape"); const free = el.querySelector(".ss-card h3").textContent;
    document.body.dataset.seen = JSON.stringify({stops, pressed, pinned, still, free, leaked, sent: window.sent,
      texts: tokens.map((t) => t.textContent), scripts: el.querySelectorAll("script,b,style").length,
      fallback: document.querySelectorAll("#" + window.model.get("fallback_id")).length});
    """
    reply = {'{"kind":"candidates","token":3}': view.candidates(3)}
    dom = dom_of(view, tmp_path, PRESS + script, replies=reply)
    seen = json.loads(_unescaped(re.search(r'data-seen="([^"]*)"', dom)))
    assert seen["texts"] == view.texts.decode().split("\0")
    assert seen["stops"] == [3]
    assert seen["pressed"] == 3
    assert "Likeliest tokens after each layer" in seen["pinned"]
    assert seen["sent"] == [{"kind": "candidates", "token": 3}]
    assert "(pinned)" in seen["still"]
    assert "(pinned)" not in seen["free"]
    assert (seen["leaked"], seen["scripts"], seen["fallback"]) == (0, 0, 0)


def _unescaped(found: re.Match[str] | None) -> str:
    import html

    assert found is not None
    return html.unescape(found[1])


@needs_browser
def test_sliders_change_the_estimate(tmp_path: Path) -> None:
    trace = made_up_trace([f"w{n}" for n in range(60)], num_layers=4)
    script = """
    const read = () => el.querySelector(".ss-facts").textContent;
    const before = read(); const [exit, drafts, threshold] = el.querySelectorAll("input");
    const seen = [before];
    for (const [input, value] of [[exit, 1], [drafts, 8], [threshold, 60]]) {
      input.value = value; input.dispatchEvent(new Event("input")); seen.push(read());
    }
    document.body.dataset.seen = JSON.stringify(seen);
    """
    dom = dom_of(WhatIf(trace, evident()), tmp_path, script)
    seen = json.loads(_unescaped(re.search(r'data-seen="([^"]*)"', dom)))
    assert len(set(seen)) == 4
    assert "An estimate, not a measurement." in dom


@needs_browser
def test_heat_maps_are_walked_by_arrows(tmp_path: Path) -> None:
    script = """
    const cells = [...el.querySelector('svg [role=grid]').querySelectorAll('[role=gridcell]')];
    cells[0].focus(); key("ArrowDown"); key("ArrowRight");
    document.body.dataset.seen = document.activeElement.getAttribute("aria-label");
    """
    dom = dom_of(CalibrationView(evident()), tmp_path, PRESS + script)
    assert re.search(r'data-seen="layer 2, 2: \d\.\d\d"', dom)


@needs_browser
def test_the_amount_of_extra_memory_is_chosen(tmp_path: Path) -> None:
    steps = (memory_step(), memory_step(QUANTIZED, name="quantized", extra_bytes=80_000_000, speedup=1.6))
    script = """
    const [zero, more] = el.querySelectorAll("input[type=radio]");
    const read = () => el.querySelector("h1").textContent;
    const before = read(); more.click(); const after = read();
    const cells = el.querySelectorAll("[role=gridcell]").length;
    const words = [...el.querySelectorAll("label")].map((label) => label.textContent.trim());
    document.body.dataset.seen = JSON.stringify({before, after, cells, words, zero: zero.checked});
    """
    dom = dom_of(CalibrationView(calibration(*steps, evidence=evident().evidence)), tmp_path, script)
    seen = json.loads(_unescaped(re.search(r'data-seen="([^"]*)"', dom)))
    assert seen["before"].startswith("1.25x")
    assert seen["after"].startswith("1.60x")
    assert seen["cells"] > 0, "the maps of the other step can be walked too"
    assert not seen["zero"]
    assert seen["words"] == [
        "zero: 0 B more, 1.25x (1.10 to 1.45) (in use)",
        "quantized: 80 MB more, 1.60x (1.10 to 1.80)",
    ]


@needs_browser
def test_one_amount_of_memory_leaves_nothing_to_choose(tmp_path: Path) -> None:
    dom = dom_of(CalibrationView(evident()), tmp_path, "")
    assert '<input type="radio"' not in dom
