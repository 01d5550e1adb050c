"""A calibration with its evidence, in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

import traitlets

from selfspec.notebook.bundle import script, style
from selfspec.notebook.view import View
from selfspec.views.calibration_html import calibration_html
from selfspec.views.calibration_text import calibration_plain

if TYPE_CHECKING:
    from markupsafe import Markup

    from selfspec_runtime.calibration import Calibration


class CalibrationView(View):
    """The report as a widget whose maps can be walked through by keyboard.

    Args:
        calibration: The calibration.
    """

    _esm = script("calibration")
    _css = style()

    content = traitlets.Unicode().tag(sync=True)

    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration
        super().__init__(content=str(calibration_html(calibration)))

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
