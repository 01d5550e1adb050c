"""Every error that selfspec raises on purpose.

    SelfspecError                    exit code 1
    ├── UsageError                   exit code 2: the request itself is wrong
    │   ├── PlanError                a draft plan that the model cannot run
    │   ├── PromptFileError          a prompt file, with file:line
    │   └── CalibrationFileError     a calibration file that is broken or of another model
    ├── ModelError                   a model that cannot be found or loaded
    │   └── UnsupportedModelError    a model that can be loaded and not decoded losslessly
    ├── WiringError                  the numeric probe found a difference
    ├── CapacityError                a text that does not fit into the model's context
    ├── NumericalError               logits that are not numbers
    ├── SpeedupNotMetError           exit code 3: --require-speedup was not reached
    └── Interrupted                  exit code 130: Ctrl-C, with everything saved

Each message says what is wrong, where, and what to do about it, in that order; the command line prints it
as it is, without a traceback, and ends with the class's exit code.
"""

from __future__ import annotations

from typing import ClassVar


class SelfspecError(Exception):
    """Base class: anything that went wrong for a reason that selfspec can name."""

    exit_code: ClassVar[int] = 1


class UsageError(SelfspecError):
    """The request cannot be carried out as it was made."""

    exit_code: ClassVar[int] = 2


class PlanError(UsageError):
    """A draft plan asks for something that this model does not have."""


class PromptFileError(UsageError):
    """A prompt file cannot be read; the message starts with ``file:line``."""


class CalibrationFileError(UsageError):
    """A calibration file is broken, of another version, or of another model."""


class ModelError(SelfspecError):
    """A model cannot be found or loaded."""


class UnsupportedModelError(ModelError):
    """A model loads, but selfspec cannot decode it losslessly."""


class WiringError(SelfspecError):
    """The numeric probe found that a wired pass differs from the model's own forward."""


class CapacityError(SelfspecError):
    """A text does not fit into the model's context."""


class NumericalError(SelfspecError):
    """The model produced logits from which no law can be made."""


class SpeedupNotMetError(SelfspecError):
    """The calibrated plan is slower than ``--require-speedup`` asked for."""

    exit_code: ClassVar[int] = 3


class Interrupted(SelfspecError):
    """Somebody pressed Ctrl-C; what was done so far is saved, and the message says how to go on."""

    exit_code: ClassVar[int] = 130
