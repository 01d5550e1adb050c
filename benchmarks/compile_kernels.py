"""Compiles every kernel ahead of time, without a GPU, and prints what each needs: registers, shared memory, spills.

    python benchmarks/compile_kernels.py [--arch 80 --arch 89 --arch 90]

Exits with 1 if a kernel does not compile or spills registers to memory.
"""

from __future__ import annotations

import argparse
import itertools
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from attention_variants import attention_variants
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from selfspec_runtime.kernels import (
    arguments,
    attention_kernels,
    best_kernels,
    decode_attention,
    draw_kernels,
    law_kernels,
    layout,
)
from selfspec_runtime.kernels.row_law import LAUNCH

ARCHITECTURES = (80, 89, 90)
TILES = 64
"""Tiles of the largest vocabulary, 262,144."""

_POINTERS = {
    "logits": "*bf16", "settings": "*fp64", "index_of": "*i32",
}  # fmt: skip
_NUMBERS = {"size", "num_tiles", "num_drafted", "num_rows"}
_ROWS = {"draft", "target"}
_CONSTANTS = {
    "TILE": [layout.TILE], "TILES": [TILES], "ROWS": [32], "PASS": [3], "STEP": [1 << 16],
    "BY_MASS": [False, True], "HAS_TOP_K": [True], "HAS_TOP_P": [True],
    "HAS_LAWS": [False, True], "IS_REDUCED": [False, True],
}  # fmt: skip


@dataclass(frozen=True)
class Compiled:
    """What one variant of a kernel needs on one architecture.

    Attributes:
        name: The kernel.
        variant: The constants that tell its variants apart.
        arch: Compute capability, for example 90.
        num_registers: Per thread.
        shared_bytes: Shared memory per block.
        spilled_bytes: Stores to and loads from local memory, per thread.
    """

    name: str
    variant: str
    arch: int
    num_registers: int
    shared_bytes: int
    spilled_bytes: int


def kernels() -> list[Any]:
    """Every kernel that is launched, in the order of their files."""
    modules = (law_kernels, draw_kernels, best_kernels)
    return [value for module in modules for name, value in vars(module).items() if name.endswith("_kernel")]


def variants(kernel: Any) -> list[dict[str, Any]]:
    """Every combination of the constants that a kernel takes."""
    names = [name for name in kernel.arg_names if name in _CONSTANTS]
    combinations = itertools.product(*(_CONSTANTS[name] for name in names))
    named = [dict(zip(names, values, strict=True)) for values in combinations]
    # Without laws there is nothing to be reduced.
    return [one for one in named if one.get("HAS_LAWS", True) or not one.get("IS_REDUCED")]


def compile_attention(arch: int) -> list[Compiled]:
    """Compile the kernels of attention in every variant that is looked at."""
    return [
        _compiled(
            ASTSource(fn=kernel, signature=one.signature, constexprs=one.constants, attrs=one.attributes),
            one.shown,
            decode_attention.LAUNCH,
            arch,
        )
        for kernel in (attention_kernels.attend_split_kernel, attention_kernels.merge_splits_kernel)
        for one in attention_variants(kernel)
    ]


def compile_kernel(kernel: Any, constants: dict[str, Any], arch: int) -> Compiled:
    """Compile one variant and read what ptxas says of it.

    Raises:
        RuntimeError: ptxas refused it.
    """
    kinds = kernel.fn.__annotations__
    signature = {name: _type_of(name, constants, kinds[name]) for name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    shown = [f"{name.lower()}={value}" for name, value in constants.items() if len(_CONSTANTS[name]) > 1]
    return _compiled(source, ", ".join(shown), LAUNCH, arch)


def _compiled(source: ASTSource, shown: str, launch: dict[str, Any], arch: int) -> Compiled:
    built = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=dict(launch))
    report = _ptxas_report(built.asm["ptx"], arch)
    return Compiled(
        name=source.fn.__name__.removesuffix("_kernel"),
        variant=shown,
        arch=arch,
        num_registers=int(_first(r"Used (\d+) registers", report)),
        shared_bytes=int(built.metadata.shared),
        spilled_bytes=sum(map(int, re.findall(r"(\d+) bytes spill", report))),
    )


def table(rows: list[Compiled]) -> str:
    """One Markdown row for each variant, with the figures of all architectures."""
    archs = sorted({row.arch for row in rows})
    lines = [
        "| kernel | variant | " + " | ".join(f"sm_{arch}: registers, shared bytes" for arch in archs) + " | spills |",
        "|---|---|" + "---|" * (len(archs) + 1),
    ]
    for (name, variant), group in itertools.groupby(rows, key=lambda row: (row.name, row.variant)):
        kept = list(group)
        figures = " | ".join(f"{row.num_registers}, {row.shared_bytes:,}" for row in kept)
        lines.append(f"| {name} | {variant} | {figures} | {sum(row.spilled_bytes for row in kept)} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Compile, print, and say whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--arch", type=int, action="append", help="compute capability, for example 90")
    archs = parser.parse_args(arguments).arch or list(ARCHITECTURES)
    rows = [
        compile_kernel(kernel, constants, arch)
        for kernel in kernels()
        for constants in variants(kernel)
        for arch in archs
    ]
    rows += sorted((row for arch in archs for row in compile_attention(arch)), key=lambda row: (row.name, row.variant))
    print(table(rows))
    spilled = [row for row in rows if row.spilled_bytes]
    print(f"\n{len(rows)} compiled, {len(spilled)} with spills, triton {triton.__version__}", file=sys.stderr)
    return 1 if spilled else 0


def _type_of(name: str, constants: dict[str, Any], kind: str) -> Any:
    if name in constants:
        return "constexpr"
    if hasattr(arguments, kind):
        return _types_of(getattr(arguments, kind))
    return _plain_type_of(name)


def _types_of(kind: Any) -> Any:
    """The types of a named tuple's entries, as a tuple of that kind."""
    return kind(*(_types_of(arguments.LawfulRows) if name in _ROWS else _plain_type_of(name) for name in kind._fields))


def _plain_type_of(name: str) -> str:
    is_number = name in _NUMBERS or name.endswith("stride")
    return _POINTERS.get(name, "i32" if is_number else "*i64")


def _ptxas_report(ptx: str, arch: int) -> str:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx, encoding="utf-8")
        target = _first(r"\.target (sm_\w+)", ptx)
        command = [get_ptxas(arch).path, "-v", f"--gpu-name={target}", str(source), "-o", str(Path(folder) / "out")]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"ptxas refused a kernel for sm_{arch}: {result.stderr.strip()}")
    return result.stderr


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise RuntimeError(f"{pattern!r} is missing in: {text[:500]}")
    return found.group(1)


if __name__ == "__main__":
    raise SystemExit(main())
