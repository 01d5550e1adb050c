"""Chooses the device and the number format of the weights."""

from __future__ import annotations

import torch

from selfspec_runtime.errors import UsageError
from selfspec_runtime.machine import has_fast_bfloat16_cpu

_DEVICE_ORDER = ("cuda", "xpu", "mps")


def choose_device(requested: str) -> torch.device:
    """The device to run on; ``auto`` is the first that is there of cuda, xpu, mps and cpu.

    Raises:
        UsageError: The device is not a device, or not in this machine.
    """
    if requested == "auto":
        return torch.device(next((kind for kind in _DEVICE_ORDER if _num_devices(kind) > 0), "cpu"))
    try:
        device = torch.device(requested)
    except RuntimeError as error:
        raise UsageError(f"There is no device {requested!r}: use auto, cpu, cuda, cuda:1, xpu or mps.") from error
    if device.type != "cpu" and (device.index or 0) >= _num_devices(device.type):
        raise UsageError(f"The device {requested!r} is not available here: {_what_is_there(device.type)}.")
    return device


def _num_devices(kind: str) -> int:
    module = getattr(torch, kind, None)
    if module is None or not module.is_available():
        return 0
    return int(module.device_count())


def _what_is_there(kind: str) -> str:
    count = _num_devices(kind)
    if count:
        return f"torch sees {count} {kind} device{'s' if count > 1 else ''}, counted from 0"
    return f"this build of torch ({torch.__version__}) sees no {kind} device. Use --device cpu or --device auto"


def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 in hardware."""
    if device.type == "cpu":
        return has_fast_bfloat16_cpu()
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0) or torch.version.hip is not None
    return True


def choose_dtype(
    requested: str, stored: torch.dtype | None, device_type: str, *, fast_bfloat16: bool
) -> tuple[torch.dtype, str | None]:
    """The dtype of the weights, and a notice where it is not the checkpoint's own.

    Args:
        requested: ``auto`` or the name of a dtype.
        stored: The checkpoint's floating-point dtype, or None where it has none (GGUF blocks).
        device_type: ``cpu``, ``cuda``, ...
        fast_bfloat16: Whether the device multiplies bfloat16 in hardware.
    """
    if requested != "auto":
        dtype: torch.dtype = getattr(torch, requested)
        return dtype, None
    if stored is None:
        return (torch.bfloat16 if fast_bfloat16 else torch.float32), None
    if stored == torch.bfloat16 and not fast_bfloat16:
        return torch.float32, _slow_notice("bfloat16", device_type, "twice the memory")
    if stored == torch.float16 and device_type == "cpu":
        hint = "; --dtype bfloat16 is faster here and rounds the weights" if fast_bfloat16 else ""
        return torch.float32, _slow_notice("float16", device_type, "twice the memory") + hint
    if not stored.is_floating_point or stored.itemsize < 2:
        return (torch.bfloat16 if fast_bfloat16 else torch.float32), None
    return stored, None


def _slow_notice(name: str, device_type: str, cost: str) -> str:
    place = "this CPU" if device_type == "cpu" else f"this {device_type} device"
    return f"The weights are {name}, which {place} does not multiply fast; they run in float32, for {cost}"
