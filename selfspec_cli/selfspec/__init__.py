"""Make your own language model faster without changing what it says.

    import selfspec

    model = selfspec.load("best.json")
    print(model.generate("Why is the sky blue?").text)

Importing this package is cheap: torch and transformers are imported when something is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from selfspec.conversation import Conversation as Conversation
    from selfspec.model import SpeculativeModel as SpeculativeModel
    from selfspec.opening import load as load
    from selfspec.result import Result as Result
    from selfspec.showing import show as show
    from selfspec_runtime.errors import SelfspecError as SelfspecError
    from selfspec_runtime.model_spec import ModelSpec as ModelSpec
    from selfspec_runtime.plan import DraftPlan as DraftPlan
    from selfspec_runtime.step import SpeculativeStep as SpeculativeStep
    from selfspec_runtime.token_trace import TokenTrace as TokenTrace

_HOMES = {
    "Conversation": "selfspec.conversation",
    "DraftPlan": "selfspec_runtime.plan",
    "ModelSpec": "selfspec_runtime.model_spec",
    "Result": "selfspec.result",
    "SelfspecError": "selfspec_runtime.errors",
    "SpeculativeModel": "selfspec.model",
    "SpeculativeStep": "selfspec_runtime.step",
    "TokenTrace": "selfspec_runtime.token_trace",
    "load": "selfspec.opening",
    "show": "selfspec.showing",
}

__all__ = [
    "Conversation",
    "DraftPlan",
    "ModelSpec",
    "Result",
    "SelfspecError",
    "SpeculativeModel",
    "SpeculativeStep",
    "TokenTrace",
    "__version__",
    "load",
    "show",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("selfspec")
    home = _HOMES.get(name)
    if home is None:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(importlib.import_module(home), name)


def load_ipython_extension(shell: Any) -> None:
    """Registers the magics of a notebook; IPython calls it for ``%load_ext selfspec``."""
    importlib.import_module("selfspec.notebook.magics").register(shell)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
