"""Finds the open model that a setting can be measured with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from selfspec.notebook.measuring import PairedMeasurement
from selfspec_runtime.calibration import Calibration
from selfspec_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from selfspec.model import SpeculativeModel
    from selfspec.notebook.measuring import Progress
    from selfspec_runtime.plan import DraftPlan
    from selfspec_runtime.token_trace import TokenTrace


def calibration_of(source: Calibration | SpeculativeModel) -> Calibration:
    """The calibration itself, or the one that a model was opened with.

    Raises:
        UsageError: The model was opened without one.
    """
    found = source if isinstance(source, Calibration) else source.calibration
    if found is None:
        message = "The model was opened without a calibration, which holds the costs. Open it with one: best.json."
        raise UsageError(message)
    return found


def default_measure(
    trace: TokenTrace | None, source: Calibration | SpeculativeModel
) -> Callable[[DraftPlan], Iterator[Progress]] | None:
    """Measures with the model given, or with the notebook's open model of the same calibration; None without one."""
    model = model_at_hand(source) if isinstance(source, Calibration) else source
    return None if model is None or trace is None else PairedMeasurement(model, trace)


def model_at_hand(calibration: Calibration) -> SpeculativeModel | None:
    """The notebook's open model that a calibration is of, or None."""
    from selfspec.model import SpeculativeModel

    try:
        from IPython import get_ipython
    except ImportError:
        return None
    shell: Any = get_ipython()
    names = {} if shell is None else shell.user_ns
    models = [each for each in list(names.values()) if isinstance(each, SpeculativeModel)]
    return next((each for each in models if each.calibration == calibration), None)
