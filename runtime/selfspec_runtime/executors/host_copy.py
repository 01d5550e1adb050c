"""The way back from the device: one counted copy into pinned memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


class HostCopy:
    """A mirror on the host of a small device tensor.

    Args:
        source: What is read, ``[n]``.

    Attributes:
        num_reads: How often the host has waited for the device.
    """

    def __init__(self, source: Tensor) -> None:
        self.num_reads = 0
        self._source = source
        on_cuda = source.device.type == "cuda"
        self._mirror = torch.empty(source.shape, dtype=source.dtype, pin_memory=on_cuda)
        self._copied = torch.cuda.Event() if on_cuda else None  # type: ignore[no-untyped-call]

    def read(self) -> list[float]:
        """Waits for everything that was launched, and returns the values."""
        self.num_reads += 1
        self._mirror.copy_(self._source, non_blocking=self._copied is not None)
        if self._copied is not None:
            # Said by name: the event's own default is the current device's stream, which may be another device's.
            self._copied.record(torch.cuda.current_stream(self._source.device))
            self._copied.synchronize()
        values: list[float] = self._mirror.tolist()
        return values


class DeviceCopy:
    """The way to the device for ids that a source found on the host.

    Args:
        destination: What is written, ``[n]`` int64.
    """

    def __init__(self, destination: Tensor) -> None:
        self._destination = destination
        self._staging = torch.empty(
            destination.shape, dtype=destination.dtype, pin_memory=destination.device.type == "cuda"
        )

    def write(self, token_ids: list[int]) -> None:
        """Writes the first places; the host has waited for the device since the last call, or waits at the next."""
        count = len(token_ids)
        self._staging[:count] = torch.tensor(token_ids, dtype=torch.long)
        self._destination[:count].copy_(self._staging[:count], non_blocking=True)
