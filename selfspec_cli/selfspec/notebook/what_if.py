"""What another setting of an early exit would bring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import traitlets

from selfspec.notebook.between_cells import SteppedWork, kernel_loop
from selfspec.notebook.bundle import script, style
from selfspec.notebook.measurement_answer import MeasurementAnswer, asked_plan
from selfspec.notebook.model_at_hand import calibration_of, default_measure
from selfspec.notebook.view import View
from selfspec.views.calibration_html import estimate_html
from selfspec.views.exit_estimate import FORMULA, MAX_DRAFT_TOKENS, ExitEstimate
from selfspec_runtime.drafts.early_exit import EarlyExitSpec
from selfspec_runtime.errors import SelfspecError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from markupsafe import Markup

    from selfspec.model import SpeculativeModel
    from selfspec.notebook.between_cells import EventLoop
    from selfspec.notebook.measuring import Progress
    from selfspec_runtime.calibration import Calibration
    from selfspec_runtime.plan import DraftPlan
    from selfspec_runtime.token_trace import TokenTrace

REPLAY_FORMULA = (
    "speedup = emitted tokens × seconds of a plain step ÷ seconds of all rounds; a round of n draft tokens costs n "
    "draft passes, one verification and the host's work, as measured on the calibrated machine."
)
REPLAYED = (
    "The rounds are replayed over this trace's own tokens with what each layer would have said; costs are the "
    "calibrated machine's."
)
DRAWN = (
    " Many of these tokens were drawn by chance and are no layer's likeliest, which a replay counts as rejected: "
    "a greedy trace (temperature 0) tells more."
)
TEXTBOOK = (
    "Each draft token is taken to be right with the exit's measured agreement; costs are the calibrated machine's."
)
DRAWN_SHARE = 0.1
"""Share of tokens that never settle from which on the estimate warns of itself."""


class WhatIf(View):
    """Sliders for exit layer, draft tokens and threshold, computed in the browser.

    Args:
        trace: Tokens to replay rounds over, or None to use the calibration's agreement.
        source: Measured costs and agreement: a calibration, or a model that was opened with one.
        measure: Measures a plan for real, run by run; without it there is no button. By default the trace's prompt
            is decoded in mirrored blocks with the model given, or with the open model of this notebook that the
            calibration is of.
        loop: Where a measurement runs; by default between the cells of this notebook.

    Raises:
        UsageError: The model has no calibration, or it and the trace are of different numbers of layers.
    """

    _esm = script("what_if")
    _css = style()

    num_layers = traitlets.Int().tag(sync=True)
    num_tokens = traitlets.Int().tag(sync=True)
    max_draft_tokens = traitlets.Int(MAX_DRAFT_TOKENS).tag(sync=True)
    agree = traitlets.Bytes().tag(sync=True)
    sure = traitlets.Bytes().tag(sync=True)
    round_seconds = traitlets.Bytes().tag(sync=True)
    agreement = traitlets.Bytes().tag(sync=True)
    plain_seconds = traitlets.Float().tag(sync=True)
    measured: traitlets.List[Any] = traitlets.List().tag(sync=True)
    start_exit = traitlets.Int().tag(sync=True)
    start_drafts = traitlets.Int().tag(sync=True)
    can_measure = traitlets.Bool().tag(sync=True)
    basis = traitlets.Unicode().tag(sync=True)
    formula = traitlets.Unicode().tag(sync=True)

    def __init__(
        self,
        trace: TokenTrace | None,
        source: Calibration | SpeculativeModel,
        *,
        measure: Callable[[DraftPlan], Iterator[Progress]] | None = None,
        loop: EventLoop | None = None,
    ) -> None:
        calibration = calibration_of(source)
        num_layers = _common_layers(trace, calibration)
        self._calibration, self._loop = calibration, loop
        self._measure = measure or default_measure(trace, source)
        self._work: SteppedWork | None = None
        start = None if trace is None else trace.exit_layer
        super().__init__(
            num_layers=num_layers,
            start_exit=start or max(1, num_layers * 3 // 4),
            start_drafts=4,
            can_measure=self._measure is not None,
            basis=TEXTBOOK if trace is None else REPLAYED + (DRAWN if _is_drawn(trace) else ""),
            formula=FORMULA if trace is None else REPLAY_FORMULA,
            measured=measured_points(calibration),
            **_costs(calibration),
            **({} if trace is None else _replayable(trace)),
        )
        self.on_msg(self._answer)

    @property
    def title(self) -> str:
        """Title of the saved page."""
        return "What another early exit would bring"

    def static_html(self) -> Markup:
        """The view without script: the estimates of every exit and number of draft tokens."""
        return estimate_html(self._calibration)

    def plain_text(self) -> str:
        """The view as text."""
        estimate = ExitEstimate(self._calibration)
        best = max(
            (
                (row[n], e, n + 1)
                for e, row in zip(estimate.exits, estimate.table, strict=True)
                for n in range(MAX_DRAFT_TOKENS)
            ),
            default=None,
        )
        if best is None:
            return "No agreement of early exits was measured, so nothing can be estimated."
        speedup, exit_layer, count = best
        drafts = f"{count} draft token{'s' * (count != 1)}"
        return f"Estimate: at best {speedup:.2f}x, with an exit after layer {exit_layer} and {drafts}."

    def _answer(self, _widget: Any, message: Any, _buffers: Any) -> None:
        kind = message.get("kind") if isinstance(message, dict) else None
        if kind == "stop" and self._work is not None:
            self._work.stop()
        if kind == "measure" and self._measure is not None and not self.is_measuring:
            self._start(message)

    @property
    def is_measuring(self) -> bool:
        """Whether a measurement is under way."""
        return self._work is not None and self._work.is_running

    def _start(self, message: dict[str, Any]) -> None:
        assert self._measure is not None
        try:
            plan = asked_plan(message)
            steps = self._measure(plan)
        except (SelfspecError, ValueError) as error:
            self.send({"kind": "measured", "text": f"It could not be measured: {error}"})
            return
        answer = MeasurementAnswer(self.send, plan, message)
        self._work = SteppedWork(steps, on_step=answer.step, on_end=answer.end, loop=self._loop or kernel_loop())
        self._work.start()


def _common_layers(trace: TokenTrace | None, calibration: Calibration) -> int:
    num_layers = calibration.fingerprint.num_hidden_layers
    if trace is not None and trace.num_layers != num_layers:
        message = (
            f"The trace is of a model with {trace.num_layers} layers, the calibration of one with {num_layers}. "
            "Trace the calibrated model."
        )
        raise UsageError(message)
    return num_layers


def _is_drawn(trace: TokenTrace) -> bool:
    return bool((trace.settle_depth > trace.num_layers).mean() > DRAWN_SHARE)


def measured_points(calibration: Calibration) -> list[dict[str, Any]]:
    """The timed study's raw and linear early exits with a fixed number of draft tokens."""
    return [
        {
            "exit_layer": each.plan.source.exit_layer,
            "num_draft_tokens": each.plan.controller.max_draft_tokens,
            "speedup": each.measured_speedup,
            "what": f"measured by the calibration, {each.plan.source.head} head",
        }
        for each in calibration.evidence.timed
        if isinstance(each.plan.source, EarlyExitSpec) and each.plan.controller.kind == "fixed"
    ]


def _costs(calibration: Calibration) -> dict[str, Any]:
    estimate = ExitEstimate(calibration)
    exits = range(1, estimate.num_layers)
    seconds = [[estimate.round_s(exit_layer, n) for n in range(MAX_DRAFT_TOKENS + 1)] for exit_layer in exits]
    known = [estimate.agreement(exit_layer) if exit_layer in estimate.exits else 0.0 for exit_layer in exits]
    return {
        "round_seconds": np.array(seconds, dtype="<f4").tobytes(),
        "agreement": np.array(known, dtype="<f4").tobytes(),
        "plain_seconds": estimate.plain_s,
    }


def _replayable(trace: TokenTrace) -> dict[str, Any]:
    sure = np.nan_to_num(trace.top_probs[..., 0].astype(np.float32))
    return {
        "num_tokens": trace.num_tokens,
        "agree": np.packbits(trace.layers_agree, axis=1).tobytes(),
        "sure": np.round(sure * 255).astype(np.uint8).tobytes(),
    }
