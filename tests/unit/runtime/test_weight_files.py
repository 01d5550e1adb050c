from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from selfspec_runtime.errors import ModelError
from selfspec_runtime.weight_files import (
    StoredTensor,
    WeightFiles,
    estimate_memory_bytes,
    read_weight_files,
)


def write_shards(folder: Path, shards: dict[str, dict[str, torch.Tensor]]) -> Path:
    for name, tensors in shards.items():
        save_file(tensors, folder / name)
    weight_map = {key: name for name, tensors in shards.items() for key in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_values_and_dtype_come_from_the_header(tmp_path: Path) -> None:
    save_file(
        {"a.weight": torch.zeros(3, 5, dtype=torch.bfloat16), "b": torch.zeros(())}, tmp_path / "model.safetensors"
    )
    files = read_weight_files(tmp_path)
    assert files.num_values == 16
    assert files.float_dtype == "BF16"
    assert files.file_bytes == (tmp_path / "model.safetensors").stat().st_size


def test_shards_count_together(tmp_path: Path) -> None:
    write_shards(tmp_path, {"1.safetensors": {"a": torch.zeros(4)}, "2.safetensors": {"b": torch.zeros(2, 3)}})
    files = read_weight_files(tmp_path)
    assert files.num_values == 10
    assert estimate_memory_bytes(files, 2, four_bit=False) == 20


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path, {"1.safetensors": {"a": torch.zeros(4)}, "2.safetensors": {"b": torch.zeros(6)}})
    (tmp_path / "2.safetensors").unlink()
    with pytest.raises(ModelError, match=r"lacks 1 of 2 weight files \(2\.safetensors"):
        read_weight_files(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"weight_map": 3}', "{}"])
def test_a_broken_index_is_said(tmp_path: Path, content: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ModelError, match="not a readable index"):
        read_weight_files(tmp_path)


@pytest.mark.parametrize("kept", [0, 4, 30, -1])
def test_a_file_that_is_cut_short_is_said(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(100)}, path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ModelError, match=r"cut short|not a whole safetensors file"):
        read_weight_files(tmp_path)


def test_a_git_lfs_pointer_is_said(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(ModelError, match="git lfs pull"):
        read_weight_files(tmp_path)


def test_a_folder_without_weights_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no weights"):
        read_weight_files(tmp_path)


def test_pickled_weights_count_by_file_size(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"x" * 77)
    files = read_weight_files(tmp_path)
    assert (files.num_values, files.float_dtype) == (None, None)
    assert estimate_memory_bytes(files, 2, four_bit=False) == 77


def tensors(*entries: StoredTensor) -> WeightFiles:
    return WeightFiles((), 0, entries)


def test_four_bits_are_for_linear_weights_only() -> None:
    linear = StoredTensor("model.layers.0.mlp.up_proj.weight", "BF16", 6400, 2)
    norm = StoredTensor("model.norm.weight", "BF16", 64, 1)
    embedding = StoredTensor("model.embed_tokens.weight", "BF16", 640, 2)
    assert estimate_memory_bytes(tensors(linear), 2, four_bit=True) == 3200 + 100 * 4
    assert estimate_memory_bytes(tensors(norm, embedding), 2, four_bit=True) == 2 * 704


def test_weights_quantised_before_keep_their_size() -> None:
    codes = StoredTensor("layer.weight", "U8", 1000, 2)
    ids = StoredTensor("layer.g_idx", "I32", 10, 1)
    assert estimate_memory_bytes(tensors(codes, ids), 4, four_bit=False) == 1040


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=5), st.sampled_from([2, 4]))
def test_memory_is_values_times_size(counts: list[int], itemsize_bytes: int) -> None:
    entries = [StoredTensor(f"t{i}", "F32", count, 2) for i, count in enumerate(counts)]
    assert estimate_memory_bytes(tensors(*entries), itemsize_bytes, four_bit=False) == itemsize_bytes * sum(counts)
