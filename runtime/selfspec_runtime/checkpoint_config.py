"""Reads a checkpoint's configuration, and says what is wrong where it cannot."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub.errors import StrictDataclassError

from selfspec_runtime.errors import ModelError, UnsupportedModelError

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


def load_config(spec: ModelSpec, place: ModelPlace) -> Any:
    """The configuration of a model, without running code that comes with it unless that was allowed.

    Raises:
        ModelError: It cannot be found, read or fetched.
        UnsupportedModelError: transformers does not know the family.
    """
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(place.name, **fetch_arguments(spec, place))
    except FETCH_ERRORS as error:
        raise _config_error(spec, place, error) from error


def fetch_arguments(spec: ModelSpec, place: ModelPlace) -> dict[str, Any]:
    """Arguments for ``from_pretrained``; remote code is always decided, so that transformers never asks."""
    arguments: dict[str, Any] = {"trust_remote_code": spec.trust_remote_code, "revision": spec.revision}
    return {**arguments, "gguf_file": place.gguf_file} if place.gguf_file is not None else arguments


def _config_error(spec: ModelSpec, place: ModelPlace, error: Exception) -> ModelError:
    text = str(error).strip()
    if "trust_remote_code" in text:
        return ModelError(
            f"{place.name} comes with Python code of its own. Read it, and pass --trust-remote-code to run it."
        )
    if "does not recognize this architecture" in text or "Unrecognized model" in text:
        return UnsupportedModelError(f"transformers does not know the family of {place.name}: {first_line(text)}")
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
    """The first line of a message, without the advice that follows in libraries' messages."""
    return text.strip().split("\n", 1)[0]
