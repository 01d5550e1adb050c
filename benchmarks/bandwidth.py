"""How fast this machine reads memory, which is the limit of every step that reads all weights once."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from selfspec_runtime.fast_linear import can_be_fast, fast_linear

if TYPE_CHECKING:
    from collections.abc import Callable

GIBIBYTE = 2**30
REPEATS = 7
WIDTH = 4096


@dataclass(frozen=True)
class Bandwidth:
    """Bytes per second, the best of several readings of a tensor that no cache holds.

    Attributes:
        sum_bytes_per_s: By adding up a float32 tensor.
        product_bytes_per_s: By one row through a large bfloat16 linear layer in its fastest form.
    """

    sum_bytes_per_s: float
    product_bytes_per_s: float

    @property
    def bytes_per_s(self) -> float:
        """The larger of both: a machine can do what it did once."""
        return max(self.sum_bytes_per_s, self.product_bytes_per_s)

    def as_json(self) -> dict[str, float]:
        """For the record."""
        return {**asdict(self), "bytes_per_s": self.bytes_per_s}


def measure_bandwidth(num_bytes: int = GIBIBYTE) -> Bandwidth:
    """Reads ``num_bytes`` several times in both ways, one after the other."""
    return Bandwidth(_sum(num_bytes), _product(num_bytes))


def _sum(num_bytes: int) -> float:
    tensor = torch.ones(num_bytes // 4)
    return num_bytes / _fastest(tensor.sum)


@torch.no_grad()
def _product(num_bytes: int) -> float:
    linear = torch.nn.Linear(WIDTH, max(1, num_bytes // (2 * WIDTH)), bias=False, dtype=torch.bfloat16, device="meta")
    linear.weight = torch.nn.Parameter(torch.full(linear.weight.shape, 0.01, dtype=torch.bfloat16), requires_grad=False)
    layer = fast_linear(linear) if can_be_fast(linear) else linear
    row = torch.ones(1, WIDTH, dtype=torch.bfloat16)
    return linear.weight.numel() * 2 / _fastest(lambda: layer(row))


def _fastest(task: Callable[[], object]) -> float:
    seconds = []
    for _ in range(REPEATS):
        started = perf_counter()
        task()
        seconds.append(perf_counter() - started)
    return min(seconds)
