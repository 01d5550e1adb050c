"""Finds out what ``--model`` points to, and says what is there instead when it is not a model."""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from selfspec_runtime.errors import ModelError

if TYPE_CHECKING:
    from selfspec_runtime.model_spec import ModelSpec

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_MAX_NAMES = 8


@dataclass(frozen=True)
class ModelPlace:
    """Where a model's files are.

    Attributes:
        name: What transformers is to load: a folder, or a hub id.
        folder: The local folder, or None for a hub id.
        gguf_file: Name of the GGUF file inside, or None for a folder in Hugging Face format.
    """

    name: str
    folder: Path | None
    gguf_file: str | None = None


def find_model(spec: ModelSpec) -> ModelPlace:
    """Resolves a model's name to files, reading no more than folder listings.

    Raises:
        ModelError: Nothing is there, or something that is not a model; the message names what is.
    """
    path = Path(spec.model).expanduser()
    if path.is_file():
        return _file_place(path)
    if path.is_dir():
        return _folder_place(path.resolve(), spec.gguf_file)
    similar = similar_folders(path)
    if similar or not _could_be_hub_id(spec.model):
        raise ModelError(f"There is no model at {spec.model!r}.{_suggestion(path, similar)}")
    return ModelPlace(spec.model, None, spec.gguf_file)


def _could_be_hub_id(name: str) -> bool:
    return _HUB_ID.fullmatch(name) is not None and name not in (".", "..")


def _file_place(path: Path) -> ModelPlace:
    if path.suffix.lower() == ".gguf":
        resolved = path.resolve()
        return ModelPlace(str(resolved.parent), resolved.parent, resolved.name)
    message = f"{path} is a file. Pass the folder that holds the model's config.json ({path.parent}?), or a .gguf file."
    raise ModelError(message)


def _folder_place(folder: Path, gguf_file: str | None) -> ModelPlace:
    if gguf_file is not None:
        if not (folder / gguf_file).is_file():
            raise ModelError(f"There is no file {gguf_file!r} in {folder}.{_contents(folder)}")
        return ModelPlace(str(folder), folder, gguf_file)
    has_config, has_adapter = ((folder / name).is_file() for name in ("config.json", "adapter_config.json"))
    if has_adapter:
        raise ModelError(_adapter_message(folder, has_model=has_config))
    if not has_config:
        raise ModelError(f"{folder} is not a model folder: it has no config.json.{_contents(folder)}")
    return ModelPlace(str(folder), folder)


def _adapter_message(folder: Path, *, has_model: bool) -> str:
    if has_model:
        return (
            f"{folder} holds a model and a PEFT adapter. Move the adapter's files to a folder of their own, "
            "and pass both: --model MODEL_FOLDER --adapter-path ADAPTER_FOLDER."
        )
    base = adapter_base(folder) or "BASE_MODEL"
    return (
        f"{folder} is a PEFT adapter, not a whole model. Pass its base model and the adapter: "
        f"--model {base} --adapter-path {folder}"
    )


def adapter_base(folder: Path) -> str | None:
    """The base model that a PEFT adapter folder names, or None where it names none or cannot be read."""
    try:
        settings = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    base = settings.get("base_model_name_or_path") if isinstance(settings, dict) else None
    return base if isinstance(base, str) and base else None


def similar_folders(path: Path) -> tuple[str, ...]:
    """Folders and GGUF files beside ``path`` whose names are like its own, the most similar first."""
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.is_dir() or entry.suffix == ".gguf"]
    except OSError:
        return ()
    lowered = {name.lower(): name for name in sorted(names)}
    matches = difflib.get_close_matches(path.name.lower(), lowered, n=3, cutoff=0.7)
    return tuple(lowered[match] for match in matches)


def _suggestion(path: Path, similar: tuple[str, ...]) -> str:
    if similar:
        return f" Did you mean {' or '.join(str(path.parent / name) for name in similar)}?"
    if not path.parent.is_dir():
        return f" The folder {path.parent} does not exist either."
    return f" In {path.parent} there is nothing with a similar name."


def _contents(folder: Path) -> str:
    names = sorted(entry.name + ("/" if entry.is_dir() else "") for entry in folder.iterdir())
    if not names:
        return " The folder is empty."
    models = sorted(entry.parent.name for entry in folder.glob("*/config.json"))
    gguf = [name for name in names if name.lower().endswith(".gguf")]
    if models:
        return f" These folders inside are models: {', '.join(models[:_MAX_NAMES])}."
    if gguf:
        return f" Pass one of its GGUF files: {', '.join(str(folder / name) for name in gguf[:_MAX_NAMES])}."
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f" It holds {', '.join(names[:_MAX_NAMES])}{more}."
