"""What a measurement was made on."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict

_CPU_INFO = Path("/proc/cpuinfo")
_NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


class Machine(BaseModel):
    """The hardware and the versions behind a measured number.

    Attributes:
        system: Operating system and its release.
        cpu: Name of the processor.
        num_threads: Threads that torch uses for one operation.
        memory_bytes: Physical memory, or None where the system does not say.
        device: Name of the device that the model runs on.
        device_memory_bytes: Memory of that device, or None on a CPU.
        cuda_driver: Version of the NVIDIA driver, or None.
        avx512_bf16: Whether the CPU multiplies bfloat16 vectors.
        amx: Whether the CPU multiplies bfloat16 tiles.
        python: Version of Python.
        torch: Version of torch, with its build tag.
        transformers: Version of transformers.
        bitsandbytes: Version of bitsandbytes, or None where it is not installed.
        selfspec: Version of selfspec.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    system: str
    cpu: str
    num_threads: int
    memory_bytes: int | None
    device: str
    device_memory_bytes: int | None = None
    cuda_driver: str | None = None
    avx512_bf16: bool
    amx: bool
    python: str
    torch: str
    transformers: str
    bitsandbytes: str | None
    selfspec: str


def describe_machine(device: torch.device | str) -> Machine:
    """Describes this machine, as seen by a model on ``device``."""
    device = torch.device(device)
    return Machine(
        system=f"{platform.system()} {platform.release()}",
        cpu=cpu_name(),
        num_threads=torch.get_num_threads(),
        memory_bytes=_memory_bytes(),
        device=device_name(device),
        device_memory_bytes=_device_memory_bytes(device),
        cuda_driver=_cuda_driver() if device.type == "cuda" else None,
        avx512_bf16=has_avx512_bf16(),
        amx=has_amx(),
        python=platform.python_version(),
        torch=torch.__version__,
        transformers=_version("transformers") or "unknown",
        bitsandbytes=_version("bitsandbytes"),
        selfspec=_version("selfspec") or "unknown",
    )


def cpu_name() -> str:
    """Name of the processor, as it calls itself."""
    named = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", _read(_CPU_INFO), re.MULTILINE)
    if named is not None:
        return named[1].strip()
    return _output("sysctl", "-n", "machdep.cpu.brand_string") or platform.processor() or platform.machine()


def device_name(device: torch.device) -> str:
    """Name of the device: the graphics card's, or the processor's."""
    if device.type in ("cuda", "xpu"):
        return str(getattr(torch, device.type).get_device_name(device))
    return f"{cpu_name()} ({device.type})" if device.type != "cpu" else cpu_name()


def has_avx512_bf16() -> bool:
    """Whether the CPU has bfloat16 dot products over 512-bit vectors."""
    return "avx512_bf16" in _cpu_flags() or _torch_says("_is_avx512_bf16_supported")


def has_amx() -> bool:
    """Whether the CPU has bfloat16 matrix tiles."""
    return "amx_bf16" in _cpu_flags() or _torch_says("_is_amx_tile_supported")


def has_fast_bfloat16_cpu() -> bool:
    """Whether bfloat16 on this CPU is faster than float32 and takes about as long for 5 rows as for 1."""
    return has_avx512_bf16() or has_amx() or "bf16" in _cpu_flags()


def _cpu_flags() -> frozenset[str]:
    listed = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", _read(_CPU_INFO), re.MULTILINE)
    return frozenset(listed[1].split()) if listed is not None else frozenset()


def _torch_says(name: str) -> bool:
    check = getattr(torch.cpu, name, None)
    return bool(check()) if check is not None else False


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _device_memory_bytes(device: torch.device) -> int | None:
    if device.type not in ("cuda", "xpu"):
        return None
    return int(getattr(torch, device.type).get_device_properties(device).total_memory)


def _cuda_driver() -> str | None:
    version = re.search(r"Kernel Module\s+(?:for \S+\s+)?([\d.]+)", _read(_NVIDIA_DRIVER))
    if version is not None:
        return version[1]
    listed = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return listed.splitlines()[0] if listed else None


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
