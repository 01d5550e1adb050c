"""How near two computations of the same rows lie."""

from __future__ import annotations

import torch
from torch import Tensor

# A few roundings of the result, as a share of a row: single numbers of a row may cancel to nothing and have no bound.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


def assert_near(found: Tensor, wanted: Tensor) -> None:
    """Asserts that each row lies as near to the wanted one, by its length, as its dtype lets it."""
    assert found.shape == wanted.shape
    lengths = wanted.double().norm(dim=-1).clamp_min(1e-30)
    error = float(((found.double() - wanted.double()).norm(dim=-1) / lengths).max())
    assert error <= TOLERANCE[found.dtype]
