"""Reads how large a model's weights are, from file headers, without reading the weights."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfspec_runtime.errors import ModelError

_HEADER_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000
_LFS_POINTER = b"version https://git-lfs"
_BYTES_PER_VALUE = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2}
_FLOATS = ("F32", "F16", "BF16", "F64")
_KEPT_WHOLE = ("embed", "lm_head", "wte", "wpe", "embd", "output.weight")
_NF4_BYTES_PER_VALUE = 0.5 + 4 / 64


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a checkpoint, as its file's header describes it.

    Attributes:
        name: Its name in the checkpoint.
        dtype: Safetensors' name of its dtype (``F32``, ``BF16``, ``U8``, ...); GGUF blocks are ``GGUF``.
        num_values: How many values it has.
        num_dims: How many dimensions it has.
    """

    name: str
    dtype: str
    num_values: int
    num_dims: int


@dataclass(frozen=True)
class WeightFiles:
    """The weight files of a model.

    Attributes:
        paths: The files.
        file_bytes: Their size on disk.
        tensors: The tensors in them; empty where the format has no readable header (``.bin``).
    """

    paths: tuple[Path, ...]
    file_bytes: int
    tensors: tuple[StoredTensor, ...]

    @property
    def num_values(self) -> int | None:
        """Number of stored values, or None where no header says."""
        return sum(tensor.num_values for tensor in self.tensors) or None

    @property
    def float_dtype(self) -> str | None:
        """Safetensors' name of the floating-point dtype that most values have, or None."""
        counts = {dtype: sum(t.num_values for t in self.tensors if t.dtype == dtype) for dtype in _FLOATS}
        most = max(_FLOATS, key=lambda dtype: counts[dtype])
        return most if counts[most] else None


def read_weight_files(folder: Path, gguf_file: str | None = None) -> WeightFiles:
    """Reads the headers of a model's weight files.

    Raises:
        ModelError: There are none, or one is missing, cut short or only a Git LFS pointer.
    """
    paths = (folder / gguf_file,) if gguf_file is not None else _weight_paths(folder)
    for path in paths:
        _require_real_file(path)
    tensors = tuple(tensor for path in paths for tensor in _tensors(path))
    return WeightFiles(paths, sum(path.stat().st_size for path in paths), tensors)


def estimate_memory_bytes(files: WeightFiles, itemsize_bytes: int, *, four_bit: bool) -> int:
    """Memory that the loaded weights take.

    Args:
        files: The weight files.
        itemsize_bytes: Bytes per value after loading; tensors stored as integers keep their size.
        four_bit: Whether the linear weights are quantised to NF4 (in blocks of 64 with a float32 scale).
    """
    if not files.tensors:
        return files.file_bytes
    return math.ceil(sum(_memory(tensor, itemsize_bytes, four_bit) for tensor in files.tensors))


def _memory(tensor: StoredTensor, itemsize_bytes: int, four_bit: bool) -> float:
    if tensor.dtype not in (*_FLOATS, "GGUF"):
        return tensor.num_values * _BYTES_PER_VALUE.get(tensor.dtype, 1)
    kept_whole = tensor.num_dims < 2 or any(word in tensor.name for word in _KEPT_WHOLE)
    return tensor.num_values * (_NF4_BYTES_PER_VALUE if four_bit and not kept_whole else itemsize_bytes)


def _weight_paths(folder: Path) -> tuple[Path, ...]:
    for index, single in (
        ("model.safetensors.index.json", "model.safetensors"),
        ("pytorch_model.bin.index.json", "pytorch_model.bin"),
    ):
        if (folder / single).is_file():
            return (folder / single,)
        if (folder / index).is_file():
            return _sharded(folder, index)
    message = (
        f"{folder} has a config.json and no weights: neither model.safetensors (or an index of its shards) nor "
        "pytorch_model.bin is there. Was the download or the training interrupted?"
    )
    raise ModelError(message)


def _sharded(folder: Path, index: str) -> tuple[Path, ...]:
    try:
        names = sorted(set(json.loads((folder / index).read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{folder / index} is not a readable index of weight files: {error}") from error
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        listed = f"{len(missing)} of {len(names)} weight files ({missing[0]}, ...)"
        raise ModelError(f"{folder} lacks {listed} that {index} names. Download the model again.")
    return tuple(folder / name for name in names)


def _require_real_file(path: Path) -> None:
    with path.open("rb") as file:
        start = file.read(len(_LFS_POINTER))
    if start == _LFS_POINTER:
        message = f"{path} is a Git LFS pointer, not the weights: run `git lfs pull` in {path.parent}."
        raise ModelError(message)


def _tensors(path: Path) -> list[StoredTensor]:
    if path.suffix == ".safetensors":
        return _safetensors(path)
    return _gguf(path) if path.suffix.lower() == ".gguf" else []


def _safetensors(path: Path) -> list[StoredTensor]:
    header, data_start = _safetensors_header(path)
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    end = data_start + max((entry["data_offsets"][1] for entry in entries.values()), default=0)
    actual = path.stat().st_size
    if actual < end:
        message = f"{path} is cut short: {actual:,} of {end:,} bytes are there. Download or copy it again."
        raise ModelError(message)
    return [
        StoredTensor(name, entry["dtype"], math.prod(entry["shape"]), len(entry["shape"]))
        for name, entry in entries.items()
    ]


def _safetensors_header(path: Path) -> tuple[dict[str, Any], int]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_HEADER_LENGTH_BYTES), "little")
        raw = file.read(length) if length <= _MAX_HEADER_BYTES else b""
    try:
        header: dict[str, Any] = json.loads(raw)
    except ValueError as error:
        raise ModelError(f"{path} is not a whole safetensors file. Download or copy it again.") from error
    return header, _HEADER_LENGTH_BYTES + length


def _gguf(path: Path) -> list[StoredTensor]:
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
    except (ValueError, OSError, IndexError, KeyError, struct.error) as error:
        raise ModelError(f"{path} is not a readable GGUF file: {error}") from error
    return [StoredTensor(t.name, "GGUF", int(t.n_elements), len(t.shape)) for t in reader.tensors]
