"""A calibration with its evidence, in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

import traitlets

from selfspec.notebook.bundle import script, style
from selfspec.notebook.view import View
from selfspec.views.calibration_html import calibration_html
from selfspec.views.calibration_text import calibration_plain
from selfspec.views.calibration_words import chosen_step, step_words

if TYPE_CHECKING:
    from markupsafe import Markup

    from selfspec_runtime.calibration import Calibration, MemoryStep


class CalibrationView(View):
    """The report as a widget: its maps can be walked through by keyboard, and the amount of extra memory chosen.

    Args:
        calibration: The calibration.
    """

    _esm = script("calibration")
    _css = style()

    contents: traitlets.List[str] = traitlets.List(traitlets.Unicode()).tag(sync=True)
    steps: traitlets.List[str] = traitlets.List(traitlets.Unicode()).tag(sync=True)
    chosen = traitlets.Int().tag(sync=True)

    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration
        super().__init__(
            contents=[str(calibration_html(each)) for each in _by_step(calibration)],
            steps=[_choice(calibration, step) for step in calibration.steps],
            chosen=calibration.chosen,
        )

    @property
    def calibration(self) -> Calibration:
        """What is shown."""
        return self._calibration

    @property
    def title(self) -> str:
        """Title of the saved page."""
        return "selfspec calibration report"

    def static_html(self) -> Markup:
        """The view without script."""
        return calibration_html(self._calibration)

    def plain_text(self) -> str:
        """The view as text."""
        return calibration_plain(self._calibration)


def _choice(calibration: Calibration, step: MemoryStep) -> str:
    in_use = " (in use)" if step.enabled and step is chosen_step(calibration) else ""
    return f"{step_words(step)}{in_use}"


def _by_step(calibration: Calibration) -> list[Calibration]:
    """The calibration as it would be with each amount of extra memory allowed."""
    return [calibration.model_copy(update={"chosen": number}) for number in range(len(calibration.steps))]
