"""Where a command writes: found out before any work, and never over what it reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from selfspec_runtime.atomic import is_stream
from selfspec_runtime.errors import SelfspecError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_MODEL_FILES = (
    "config.json", "generation_config.json", "adapter_config.json", "tokenizer_config.json", "*.index.json",
    "tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "merges.txt", "special_tokens_map.json",
    "added_tokens.json", "chat_template.*", "model.safetensors", "model-*-of-*.safetensors", "adapter_model.*",
    "*.bin", "*.gguf",
)  # fmt: skip
"""What a checkpoint is made of; a calibration file and its arrays may lie beside it."""


def refuse_overlap(outputs: Mapping[str, Path], inputs: Mapping[str, Path | None]) -> None:
    """Refuses to write over what the same command reads, or two results into one file.

    Args:
        outputs: Paths by what each is, such as ``--output``.
        inputs: Paths by what each is, in the words of a message; None where there is none.

    Raises:
        UsageError: Two of them are one file, also by another name for it.
    """
    taken = {path.expanduser().resolve(): name for name, path in inputs.items() if path is not None}
    for name, path in outputs.items():
        place = path.resolve()
        if place in taken:
            message = f"{path} would be written as {name}, and is {taken[place]} as well. Choose another place."
            raise UsageError(message)
        if not is_stream(path):
            taken[place] = name


def model_files(model: str | None) -> dict[str, Path]:
    """The files of a local model that no result may be written over, for :func:`refuse_overlap`."""
    place = Path(model or "").expanduser()
    if model is None or not place.exists():
        return {}
    found = [place] if place.is_file() else [path for pattern in _MODEL_FILES for path in place.glob(pattern)]
    return {f"a file of the model, {path.name}": path for path in found}


def calibration_files(file: Path | None) -> dict[str, Path]:
    """A calibration file and its arrays, for :func:`refuse_overlap`."""
    if file is None:
        return {}
    if not file.name:  # a folder, which loading refuses
        return {"the calibration file": file}
    return {"the calibration file": file, "the calibration's arrays": file.with_suffix(".safetensors")}


def prepare_output(path: Path, *, option: str = "--output") -> None:
    """Finds out before minutes of work whether a result can be written.

    Args:
        path: Where to.
        option: What names it on the command line.

    Raises:
        SelfspecError: It cannot.
        UsageError: It is a folder, or a device.
    """
    require_file(path, option=option)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        probe = path.parent / f".{path.name}.probe"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        message = f"{path} cannot be written ({error.strerror}). Choose another place with {option}."
        raise SelfspecError(message) from error


def require_file(path: Path, *, option: str = "--output") -> None:
    """Refuses what cannot become a file; nothing is written.

    Args:
        path: Where a result is to be written.
        option: What names it on the command line.

    Raises:
        UsageError: It is a folder, a device or a FIFO.
    """
    name = {"--markdown": "compare.md"}.get(option, "best.json")
    if path.is_dir():
        message = f"{path} is a folder. Name a file with {option}, such as {path / name}."
        raise UsageError(message)
    if is_stream(path):
        message = f"{path} is a device or a pipe, and no file. Name a file with {option}, such as {name}."
        raise UsageError(message)
