"""How mixtures of experts compute while a step is recorded."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PreTrainedModel

RECORDABLE = "batched_mm"
#: What asks the device which experts are needed: transformers' loop, and the grouped product inside.
_READING = frozenset({"eager", "grouped_mm"})


@contextmanager
def batched_experts(model: PreTrainedModel) -> Iterator[None]:
    """Has experts run as one batched product, which reads nothing on the host, until the block ends.

    A batched product copies the weights of each token's experts, which is right for the few rows of a step and would
    not fit into memory for a prompt. So the model computes as it was loaded whenever nothing is recorded; what was
    recorded stays batched.

    Args:
        model: Any model; one without experts, or loaded with another implementation, is left alone.
    """
    chosen = getattr(model.config, "_experts_implementation", None)
    if chosen not in _READING:
        yield
        return
    model.set_experts_implementation(RECORDABLE)
    try:
        yield
    finally:
        model.set_experts_implementation(chosen)
