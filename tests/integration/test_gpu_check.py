"""The GPU check walks through everything on a CPU, so that it does not fail on the machine that it is for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_check.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


def test_the_dry_run_prints_one_table_with_every_case() -> None:
    done = run("--dry-run")
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line.split("|")[1:-1] for line in done.stdout.splitlines() if line.startswith("| tiny")]
    assert [row[0].strip().rsplit(", ", 1)[1] for row in rows] == ["eager", "cuda_graph"] * 2
    assert [row[4].strip() for row in rows] == ["", "1.00", "", "1.00"], "one host read a round"
    assert [row[5].strip() for row in rows] == ["", "", "1.000", "1.000"], "planted drafts are always right"
    assert all(float(row[1]) > 0 for row in rows)
    assert "draw, rejection, 256 tokens" in done.stdout
    assert "decide, match, 256 tokens" in done.stdout
    timed = [line.split("|")[2].strip() for line in done.stdout.splitlines() if line.startswith("| 4 heads, 20 of 40")]
    assert timed == ["1", "5", "16"], "attention of one row, of a block, and of the widest"
    assert "CUDA graphs are off" not in done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so() -> None:
    done = run()
    assert done.returncode == 2
    assert "--dry-run" in done.stdout
