"""Opening a model never holds two copies of its weights, although each layer is repacked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from benchmarks.loading_memory import STATUS, LoadingMemory
from tests.support.tiny_models import build_model, tiny_config
from tests.support.tiny_tokenizer import tiny_tokenizer

from selfspec_runtime.native.library import native_status

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("peak_memory"),
    pytest.mark.skipif(not STATUS.exists(), reason="needs Linux's /proc"),
]
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "loading_memory.py"
#: Without a compiler oneDNN packs, and holds a layer's originals and copies side by side for longer.
MOST = 1.05 if native_status().kernels is not None else 1.10
SIZES = {
    "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 32, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 4096,
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("loading_memory")
    for name, sizes in (("large", SIZES), ("small", {"vocab_size": 512})):
        model = build_model(tiny_config("llama", **sizes), attention="sdpa")
        model.to(torch.bfloat16).save_pretrained(root / name)
        tiny_tokenizer(512).save_pretrained(root / name)
    return root / "large", root / "small"


def measured(folders: tuple[Path, Path], dtype: str) -> LoadingMemory:
    command = [sys.executable, str(SCRIPT), "--model", str(folders[0]), "--warm-up", str(folders[1]), "--dtype", dtype]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return LoadingMemory(**json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_peak_is_that_of_one_copy(folders: tuple[Path, Path], dtype: str) -> None:
    memory = measured(folders, dtype)
    assert memory.kept_bytes > 0.5 * memory.weight_bytes, "the measurement sees the weights"
    assert memory.peak_bytes <= MOST * memory.weight_bytes
