"""What another setting of an early exit would bring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import traitlets

from selfspec.notebook.bundle import script, style
from selfspec.notebook.view import View
from selfspec.views.calibration_html import estimate_html
from selfspec.views.exit_estimate import FORMULA, MAX_DRAFT_TOKENS, ExitEstimate
from selfspec_runtime.drafts.early_exit import EarlyExitSpec
from selfspec_runtime.errors import SelfspecError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from markupsafe import Markup

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
TEXTBOOK = (
    "Each draft token is taken to be right with the exit's measured agreement; costs are the calibrated machine's."
)


class WhatIf(View):
    """Sliders for exit layer, draft tokens and threshold, computed in the browser.

    Args:
        trace: Tokens to replay rounds over, or None to use the calibration's agreement.
        calibration: Measured costs and agreement.
        measure: Measures a plan's speedup over plain decoding for real; without it there is no button.

    Raises:
        UsageError: Trace and calibration are of models with different numbers of layers.
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
        calibration: Calibration,
        *,
        measure: Callable[[DraftPlan], float] | None = None,
    ) -> None:
        num_layers = calibration.fingerprint.num_hidden_layers
        if trace is not None and trace.num_layers != num_layers:
            message = (
                f"The trace is of a model with {trace.num_layers} layers, the calibration of one with {num_layers}. "
                "Trace the calibrated model."
            )
            raise UsageError(message)
        self._calibration, self._measure = calibration, measure
        start = None if trace is None else trace.exit_layer
        super().__init__(
            num_layers=num_layers,
            start_exit=start or max(1, num_layers * 3 // 4),
            start_drafts=4,
            can_measure=measure is not None,
            basis=TEXTBOOK if trace is None else REPLAYED,
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
        return f"Estimate: at best {best[0]:.2f}x, with an exit after layer {best[1]} and {best[2]} draft tokens."

    def _answer(self, _widget: Any, message: Any, _buffers: Any) -> None:
        if not isinstance(message, dict) or message.get("kind") != "measure" or self._measure is None:
            return
        self.send({"kind": "measured", **self._measured(message)})

    def _measured(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            plan = _plan(message)
            assert self._measure is not None
            speedup = self._measure(plan)
        except (SelfspecError, ValueError) as error:
            return {"text": f"It could not be measured: {error}"}
        point = None
        if not message.get("threshold"):
            point = {
                "exit_layer": message["exitLayer"],
                "num_draft_tokens": message["numDraftTokens"],
                "speedup": speedup,
            }
        return {"text": f"Measured: {speedup:.2f}x over plain decoding with {plan.describe()}.", "point": point}


def measured_points(calibration: Calibration) -> list[dict[str, Any]]:
    """The timed study's raw and linear early exits with a fixed number of draft tokens."""
    return [
        {
            "exit_layer": each.plan.source.exit_layer,
            "num_draft_tokens": each.plan.controller.max_draft_tokens,
            "speedup": each.measured_speedup,
        }
        for each in calibration.evidence.timed
        if isinstance(each.plan.source, EarlyExitSpec) and each.plan.controller.kind == "fixed"
    ]


def _plan(message: dict[str, Any]) -> DraftPlan:
    from selfspec_runtime.plan import DraftPlan

    threshold = float(message.get("threshold") or 0)
    controller: dict[str, Any] = {"kind": "fixed", "num_draft_tokens": message.get("numDraftTokens")}
    if threshold:
        controller |= {"kind": "confidence", "draft_confidence_threshold": threshold}
    source = {"kind": "early_exit", "exit_layer": message.get("exitLayer")}
    return DraftPlan.model_validate({"source": source, "controller": controller})


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
