"""The browser's wish to have a setting measured, and what it is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from selfspec_runtime.plan import DraftPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from selfspec.notebook.measuring import Progress


def asked_plan(message: Mapping[str, Any]) -> DraftPlan:
    """The plan that a browser's message asks for: a raw early exit.

    Raises:
        ValueError: It asks for no such plan.
    """
    threshold = float(message.get("threshold") or 0)
    controller: dict[str, Any] = {"kind": "fixed", "num_draft_tokens": message.get("numDraftTokens")}
    if threshold:
        controller |= {"kind": "confidence", "draft_confidence_threshold": threshold}
    source = {"kind": "early_exit", "exit_layer": message.get("exitLayer")}
    return DraftPlan.model_validate({"source": source, "controller": controller})


class MeasurementAnswer:
    """What the browser is told while and after a setting is measured.

    Args:
        send: Sends a message.
        plan: What is measured.
        asked: The browser's message.
    """

    def __init__(self, send: Callable[[dict[str, Any]], object], plan: DraftPlan, asked: Mapping[str, Any]) -> None:
        self._send, self._plan, self._asked = send, plan, asked
        self._last: Progress | None = None

    def step(self, progress: Progress) -> None:
        """After each run."""
        self._last = progress
        if not progress.is_finished:
            text = f"Measuring {self._plan.describe()}: run {progress.done + 1} of {progress.total} …"
            self._send({"kind": "measuring", "text": text})

    def end(self, how: str) -> None:
        """At the end; ``how`` as `SteppedWork` says it."""
        last = self._last
        if how == "done" and last is not None and last.speedup is not None:
            self._send({"kind": "measured", "text": self._words(last), "point": self._point(last.speedup)})
            return
        said = {"done": "Nothing was timed: the text ended at its first token.", "stopped": "Stopped; nothing is kept."}
        self._send({"kind": "measured", "text": said.get(how, f"It could not be measured: {how}")})

    def _words(self, last: Progress) -> str:
        spread = f" ({min(last.ratios):.2f} to {max(last.ratios):.2f})" if len(last.ratios) > 1 else ""
        return (
            f"Measured: {last.speedup:.2f}x{spread} over plain decoding with {self._plan.describe()}, in "
            f"{len(last.ratios)} mirrored blocks on this trace's prompt, up to {last.num_tokens} tokens each."
        )

    def _point(self, speedup: float) -> dict[str, Any] | None:
        """Where it goes in the picture, which is drawn for drafts of a fixed length."""
        if self._asked.get("threshold"):
            return None
        asked = self._asked
        return {
            "exit_layer": asked["exitLayer"],
            "num_draft_tokens": asked["numDraftTokens"],
            "speedup": speedup,
            "what": "measured here, on this prompt",
        }
