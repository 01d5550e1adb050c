"""Every kernel compiles ahead of time, without a GPU, and keeps its numbers in registers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "compile_kernels.py"


@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 89, 90])
def test_every_kernel_compiles_without_spills(arch: int) -> None:
    # In a process of its own, because kernels that are interpreted cannot be compiled.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(SCRIPT), "--arch", str(arch)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr
    rows = [line for line in result.stdout.splitlines() if re.match(r"\| [a-z_]+ \|", line)][1:]
    names = {row.split("|")[1].strip() for row in rows}
    assert {"search", "head", "draft", "accept", "residual", "correct", "largest_token", "shared_token"} <= names
    assert {"attend_split", "merge_splits"} <= names
    for row in rows:
        num_registers = int(row.split("|")[3].split(",")[0])
        assert 0 < num_registers <= 255
        assert row.rstrip(" |").endswith(" 0")
