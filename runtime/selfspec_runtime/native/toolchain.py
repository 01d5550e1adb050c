"""Compiles the kernels with the machine's own C++ compiler, once, into the user's cache."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

FLAGS = ("-O3", "-std=c++17", "-march=native", "-fopenmp", "-fPIC", "-shared", "-Wno-psabi")
#: Seconds after which a compiler is taken to hang; it needs ten to thirty.
TIMEOUT_S = 300


class ToolchainError(Exception):
    """The kernels cannot be compiled here. It reaches nobody: decoding runs on torch's own operators instead."""


def compiled_kernels() -> Path:
    """The compiled kernels, from the cache if they were compiled before.

    Returns:
        Path of the shared library.

    Raises:
        ToolchainError: There is no compiler, or it refuses; says why.
    """
    compiler = _compiler()
    library = _cache_folder() / f"kernels-{_digest(compiler)}.so"
    if not library.exists():
        _compile(compiler, library)
    return library


def _compiler() -> list[str]:
    """The command; CXX may begin with a wrapper, such as ccache, and hold flags."""
    try:
        told = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise ToolchainError(f"CXX cannot be read as a command: {error}") from error
    wanted = [told] if told else [["c++"], ["g++"], ["clang++"]]
    found = next(([path, *rest] for name, *rest in wanted if (path := shutil.which(name))), None)
    if found is None:
        raise ToolchainError(f"no C++ compiler was found (looked for {', '.join(name for name, *_ in wanted)})")
    return found


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "selfspec"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ToolchainError(f"the cache folder {folder} cannot be made: {error.strerror}") from error
    return folder


def _digest(compiler: list[str]) -> str:
    """Changes with the sources, the flags, the compiler and the processor: the code is for this processor alone."""
    digest = hashlib.sha256()
    for path in sorted(path for path in Path(__file__).parent.iterdir() if path.suffix in (".cpp", ".h")):
        digest.update(path.read_bytes())
    for part in (*FLAGS, *compiler, _output([*compiler, "--version"]), _processor()):
        digest.update(part.encode())
    return digest.hexdigest()[:16]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() + platform.machine()
    return "\n".join(sorted({line for line in lines if line.startswith(("flags", "model name", "Features"))}))


def _compile(compiler: list[str], library: Path) -> None:
    source = Path(__file__).with_name("kernels.cpp")
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / "kernels.so"
        _output([*compiler, *FLAGS, str(source), "-o", str(made)])
        made.replace(library)


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(f"{command[0]} does not run: {error}") from error
    if done.returncode != 0:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
        raise ToolchainError(f"{command[0]} cannot compile the kernels: {first}")
    return done.stdout
