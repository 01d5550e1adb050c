"""Reads a checkpoint's configuration, and says what is wrong where it cannot."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub.errors import StrictDataclassError

from selfspec_runtime.errors import ModelError, UnsupportedModelError
from selfspec_runtime.families import text_config

if TYPE_CHECKING:
    from selfspec_runtime.model_place import ModelPlace
    from selfspec_runtime.model_spec import ModelSpec

FETCH_ERRORS = (
    OSError,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    ImportError,
    StrictDataclassError,
    struct.error,
)
"""What transformers raises for files that are missing, broken or not understood."""

_NO_DTYPE = re.compile(r"module 'torch' has no attribute '(\w+)'")


def load_config(spec: ModelSpec, place: ModelPlace) -> Any:
    """The configuration of a model, without running code that comes with it unless that was allowed.

    Raises:
        ModelError: It cannot be found, read or fetched.
        UnsupportedModelError: transformers does not know the family.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(place.name, **fetch_arguments(spec, place))
    except FETCH_ERRORS as error:
        raise _config_error(spec, place, error) from error
    _require_layers(config, place)
    return config


def generation_config_notice(place: ModelPlace) -> tuple[str, ...]:
    """Says that a folder's generation config is broken; transformers goes on without it in silence.

    Raises:
        ModelError: It is whole and yet no object, on which transformers stops.
    """
    path = None if place.folder is None else place.folder / "generation_config.json"
    if path is None or not path.is_file():
        return ()
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return (f"{path} cannot be read as JSON: the model is decoded as if there were none",)
    if not isinstance(settings, dict):
        message = f"{path} holds no settings by name. Correct it, or take it away."
        raise ModelError(message)
    return ()


def fetch_arguments(spec: ModelSpec, place: ModelPlace) -> dict[str, Any]:
    """Arguments for ``from_pretrained``; remote code is always decided, so that transformers never asks."""
    arguments: dict[str, Any] = {"trust_remote_code": spec.trust_remote_code, "revision": spec.revision}
    return {**arguments, "gguf_file": place.gguf_file} if place.gguf_file is not None else arguments


def setting_of(config: Any, value: object) -> str | None:
    """The dotted name of the setting that has a value, for messages that give the value alone."""
    settings = config if isinstance(config, dict) else config.to_dict()
    for name, held in settings.items():
        if isinstance(held, dict) and (inner := setting_of(held, value)) is not None:
            return f"{name}.{inner}"
        if isinstance(held, str) and held == value:
            return str(name)
    return None


def _require_layers(config: Any, place: ModelPlace) -> None:
    number = getattr(text_config(config), "num_hidden_layers", 1)
    if isinstance(number, int) and number < 1:
        message = f"{place.name}: num_hidden_layers in config.json is {number}, and a model has at least one layer."
        raise ModelError(message)


def _config_error(spec: ModelSpec, place: ModelPlace, error: Exception) -> ModelError:
    text = str(error).strip()
    if "trust_remote_code" in text:
        return ModelError(
            f"{place.name} comes with Python code of its own. Read it, and pass --trust-remote-code to run it."
        )
    if "does not recognize this architecture" in text or "Unrecognized model" in text:
        return UnsupportedModelError(f"transformers does not know the family of {place.name}: {first_line(text)}")
    no_dtype = _NO_DTYPE.search(text)
    if no_dtype is not None:
        return ModelError(
            f"{place.name}: the dtype in config.json is {no_dtype[1]!r}, and torch has none of that name."
        )
    if place.folder is not None:
        file = place.gguf_file or "config.json"
        return ModelError(f"{place.folder / file} cannot be read: {first_line(text)}")
    return ModelError(_hub_message(spec, text))


def _hub_message(spec: ModelSpec, reason: str) -> str:
    here = Path.cwd()
    return (
        f"{spec.model!r} is no folder in {here}, and it could not be fetched from the Hugging Face hub: "
        f"{first_line(reason)} Offline, pass a folder, or fetch the model once where there is a network: "
        f"hf download {spec.model}"
    )


def first_line(text: str) -> str:
    """The first line of a message, without the advice that follows in libraries' messages; of ``reason:`` the next."""
    first, *rest = text.strip().split("\n", 1)
    return f"{first} {first_line(rest[0])}" if rest and first.endswith(":") else first
