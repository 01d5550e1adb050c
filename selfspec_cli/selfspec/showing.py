"""Shows a trace or a calibration: as a widget in a notebook, as text elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfspec_runtime.calibration import Calibration
from selfspec_runtime.calibration_store import LoadedCalibration, load_calibration
from selfspec_runtime.errors import UsageError
from selfspec_runtime.token_trace import TokenTrace

if TYPE_CHECKING:
    from selfspec.model import SpeculativeModel


def show(shown: TokenTrace | Calibration | LoadedCalibration | SpeculativeModel | str | Path) -> Any:
    """Shows something that selfspec made.

    Args:
        shown: A trace; a calibration, loaded or by its path; or a model that was opened with one.

    Returns:
        The widget in a notebook, None elsewhere.

    Raises:
        UsageError: It cannot be shown, or widgets are not installed.
        CalibrationFileError: The file is none.
    """
    found = _found(shown)
    if not in_notebook():
        _write(found)
        return None
    view = view_of(found)
    view._ipython_display_()
    return _Shown(view)


def view_of(found: TokenTrace | Calibration) -> Any:
    """The widget for a trace or a calibration.

    Raises:
        UsageError: anywidget is not installed.
    """
    try:
        if isinstance(found, TokenTrace):
            from selfspec.notebook.exit_depth_view import ExitDepthView

            return ExitDepthView(found)
        from selfspec.notebook.calibration_view import CalibrationView

        return CalibrationView(found)
    except ImportError as error:
        message = f"Widgets need a package that is not installed ({error.name}). Run: pip install 'selfspec[notebook]'"
        raise UsageError(message) from error


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    shell: Any = get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


class _Shown:
    """What :func:`show` returns: already shown, so that a cell that ends with it shows nothing again.

    Attributes:
        view: The widget.
    """

    def __init__(self, view: Any) -> None:
        self.view = view

    def _ipython_display_(self) -> None:
        return


def _found(shown: Any) -> TokenTrace | Calibration:
    if isinstance(shown, str | Path):
        return load_calibration(Path(shown)).calibration
    if isinstance(shown, TokenTrace | Calibration):
        return shown
    inner = getattr(shown, "calibration", None)
    if isinstance(inner, Calibration):
        return inner
    wanted = "Give a trace (model.trace(prompt)), a calibration, or the path of one."
    message = f"{type(shown).__name__} cannot be shown. {wanted}"
    raise UsageError(message)


def _write(found: TokenTrace | Calibration) -> None:
    from selfspec.cli.console import Terminal

    if isinstance(found, TokenTrace):
        from selfspec.views.exit_depth_text import exit_depth_text

        Terminal().show(exit_depth_text(found))
        return
    from selfspec.views.calibration_text import calibration_plain

    Terminal().result(calibration_plain(found))
