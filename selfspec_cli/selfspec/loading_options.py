"""How a model is to be loaded, as a caller writes it: checked, and in a `ModelSpec`'s own words."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, get_args

from selfspec_runtime.errors import UsageError
from selfspec_runtime.model_spec import ModelSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

OPTIONS = (
    "tokenizer", "plan", "max_extra_memory", "device", "executor", "dtype", "quantization", "revision",
    "trust_remote_code", "force", "exact",
)  # fmt: skip
_SHORT_DTYPES = {"fp32": "float32", "float": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16"}
_INSTEAD = {
    "torch_dtype": "The number format is given as dtype",
    "device_map": "A model runs on one device, which is given as device",
    "load_in_4bit": 'Write quantization="bnb-4bit"',
    "load_in_8bit": 'Write quantization="bnb-8bit"',
    "quantization_config": 'Write quantization="bnb-4bit", or load the model yourself and pass it with its tokenizer',
    "calib": "A calibration file is the first argument, or plan",
    "model": "The model is the first argument",
}


def loading_changes(**given: Any) -> dict[str, Any]:
    """What was said of loading, by the names of `ModelSpec`; what is None was not said.

    Args:
        **given: Values by these names; a dtype may be torch's own or a common short name.

    Raises:
        UsageError: A value is none of those that there are.
    """
    said = {name: value for name, value in given.items() if value is not None}
    if "dtype" in said:
        name = str(said["dtype"]).removeprefix("torch.")
        said["dtype"] = _SHORT_DTYPES.get(name, name)
    for name, value in said.items():
        _require_known(name, value)
    return said


def refuse_unknown(options: Mapping[str, object]) -> None:
    """Refuses options that `selfspec.load` has not, with the one that is meant.

    Raises:
        UsageError: There is one.
    """
    for name in options:
        if name in _INSTEAD:
            message = f"load has no option {name!r}. {_INSTEAD[name]}."
            raise UsageError(message)
        near = difflib.get_close_matches(name, OPTIONS, n=1)
        rarer = f"It has {', '.join(OPTIONS)}; selfspec.ModelSpec has what is rarer."
        message = f"load has no option {name!r}. {f'Did you mean {near[0]}?' if near else rarer}"
        raise UsageError(message)


def _require_known(name: str, value: object) -> None:
    annotation = ModelSpec.model_fields[name].annotation
    choices = [choice for choice in get_args(annotation) if isinstance(choice, str)]
    if choices and value not in choices:
        message = f"{name} cannot be {value!r}: use one of {', '.join(choices)}."
        raise UsageError(message)
    if not choices and not isinstance(value, bool if annotation is bool else str):
        message = f"{name} cannot be {value!r}: give {'True or False' if annotation is bool else 'text'}."
        raise UsageError(message)
