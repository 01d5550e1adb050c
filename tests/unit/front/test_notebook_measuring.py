from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("anywidget")

from IPython.core.interactiveshell import InteractiveShell
from tests.support.calibrations import calibration, evidence
from tests.support.hand_loop import HandLoop

import selfspec
from selfspec.notebook import WhatIf
from selfspec.notebook.between_cells import SteppedWork, kernel_loop
from selfspec.notebook.measuring import PairedMeasurement
from selfspec.notebook.model_at_hand import model_at_hand
from selfspec_runtime.engine import Engine
from selfspec_runtime.errors import PlanError, UsageError
from selfspec_runtime.fingerprint import fingerprint
from selfspec_runtime.plan import DraftPlan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from selfspec import SpeculativeModel

EXIT = DraftPlan.model_validate({"source": {"kind": "early_exit", "exit_layer": 2}})


@pytest.fixture(scope="module")
def calibrated(tiny_folder: Path) -> SpeculativeModel:
    """The tiny model as if it had been calibrated."""
    model = selfspec.load(str(tiny_folder), plan={"source": {"kind": "ngram"}})
    known = evidence().model_copy(update={"agreement_by_exit": (0.2, 0.4, 0.8)})
    model.calibration = calibration(evidence=known, fingerprint=fingerprint(model.loaded))
    return model


def test_runs_are_paired_and_mirrored(calibrated: SpeculativeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = calibrated.trace("abc", max_new_tokens=10, temperature=0)
    runs: list[tuple[str, int, tuple[int, ...]]] = []
    generate = Engine.generate

    def watched(engine: Engine, prompt_ids: list[int], settings: Any) -> Any:
        found = generate(engine, prompt_ids, settings)
        runs.append((engine.plan.describe(), settings.max_new_tokens, tuple(found.token_ids)))
        assert tuple(prompt_ids) == trace.prompt_ids
        return found

    monkeypatch.setattr(Engine, "generate", watched)
    steps = list(PairedMeasurement(calibrated, trace, num_blocks=2)(EXIT))
    plain, plan = "plain decoding", EXIT.describe()
    assert [name for name, *_ in runs] == [plain, plan, *[plain, plan, plan, plain] * 2]
    assert [length for _, length, _ in runs] == [8, 8, *[10] * 8]
    assert {ids for _, length, ids in runs if length == 10} == {tuple(trace.token_ids.tolist())}
    assert [step.done for step in steps] == list(range(11))
    assert [len(step.ratios) for step in steps] == [0] * 6 + [1] * 4 + [2]
    last = steps[-1]
    assert last.is_finished
    assert last.speedup is not None
    assert min(last.ratios) <= last.speedup <= max(last.ratios)


def test_what_does_not_fit_the_model_is_said(calibrated: SpeculativeModel) -> None:
    trace = calibrated.trace("abc", max_new_tokens=4, temperature=0)
    beyond = DraftPlan.model_validate({"source": {"kind": "early_exit", "exit_layer": 4}})
    with pytest.raises(PlanError):
        list(PairedMeasurement(calibrated, trace)(beyond))


def test_a_model_given_is_measured_with_by_default(
    calibrated: SpeculativeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = WhatIf(calibrated.trace("abc", max_new_tokens=6, temperature=0), calibrated)
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(view, "send", sent.append)
    view._answer(view, {"kind": "measure", "exitLayer": 2, "numDraftTokens": 3, "threshold": 0}, [])
    assert view.can_measure
    assert [each["kind"] for each in sent] == [*["measuring"] * (len(sent) - 1), "measured"]
    assert "in 3 mirrored blocks on this trace's prompt, up to 6 tokens each" in sent[-1]["text"]
    assert sent[-1]["point"]["speedup"] > 0


def test_a_model_without_a_calibration_has_nothing_to_estimate_from(ngram_model: SpeculativeModel) -> None:
    with pytest.raises(UsageError, match="opened without a calibration"):
        WhatIf(None, ngram_model)


def test_the_notebooks_own_model_is_found_by_its_calibration(calibrated: SpeculativeModel) -> None:
    assert calibrated.calibration is not None
    assert model_at_hand(calibrated.calibration) is None, "no notebook"
    make: Any = InteractiveShell
    shell = make.instance()
    try:
        shell.user_ns["mine"] = calibrated
        other = calibrated.calibration.model_copy(update={"created": "another day"})
        assert model_at_hand(calibrated.calibration) is calibrated
        assert model_at_hand(other) is None
        assert WhatIf(calibrated.trace("abc", max_new_tokens=4), calibrated.calibration).can_measure
        assert kernel_loop() is None, "a shell without a kernel"
    finally:
        InteractiveShell.clear_instance()


def work(steps: Iterator[int], loop: HandLoop | None = None) -> tuple[SteppedWork, list[object]]:
    seen: list[object] = []
    return SteppedWork(steps, on_step=seen.append, on_end=seen.append, loop=loop), seen


def test_without_a_loop_everything_runs_at_once() -> None:
    stepped, seen = work(iter(range(3)))
    stepped.start()
    assert seen == [0, 1, 2, "done"]


def test_each_turn_of_the_loop_is_one_step() -> None:
    loop = HandLoop()
    stepped, seen = work(iter(range(2)), loop)
    stepped.start()
    for expected in ([], [0], [0, 1], [0, 1, "done"], [0, 1, "done"]):
        assert seen == expected
        loop.turn()
    assert not stepped.is_running


def test_the_stop_button_of_the_notebook_interrupts_a_step() -> None:
    def pressed() -> Iterator[int]:
        yield 0
        os.kill(os.getpid(), signal.SIGINT)
        yield 1

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        stepped, seen = work(pressed())
        stepped.start()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [0, "stopped"]


def test_a_stop_from_another_thread_ends_the_work_and_closes_it() -> None:
    closed: list[bool] = []

    def steps() -> Iterator[int]:
        try:
            yield from range(100)
        finally:
            closed.append(True)

    loop = HandLoop()
    stepped, seen = work(steps(), loop)
    stepped.start()
    loop.turn()
    thread = threading.Thread(target=stepped.stop)
    thread.start()
    thread.join()
    loop.turn()
    assert seen == [0, "stopped"]
    assert closed == [True]
    assert loop.waiting == []


def test_a_long_trace_is_measured_on_its_beginning(calibrated: SpeculativeModel) -> None:
    trace = calibrated.trace("abc", max_new_tokens=100, temperature=0, criteria=lambda _: False)
    measuring = PairedMeasurement(calibrated, trace, num_blocks=1)
    assert next(iter(measuring(EXIT))).num_tokens == 64
    sampled = replace(measuring, model=calibrated)._settings().sampling
    assert sampled.greedy, "as the calibration was measured"
