"""Counts the layers that a model really runs, so that gain and loss are known without a clock."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from selfspec_runtime.engine import Engine
    from selfspec_runtime.generation import GenerationSettings
    from selfspec_runtime.target import Target


@dataclass
class LayerCount:
    """Work seen so far.

    Attributes:
        row_cost: What a further row of a pass costs, relative to the first.
        work: Layers run; an attention or an MLP is half of one.
    """

    row_cost: float
    work: float = 0.0

    def see(self, num_rows: int) -> None:
        """Counts one sub-layer."""
        self.work += 0.5 * (1.0 + self.row_cost * (num_rows - 1))


@contextmanager
def counted_layers(target: Target, *, row_cost: float) -> Iterator[LayerCount]:
    """Watches every attention and MLP of a model that selfspec has not rebuilt, whatever program runs them."""
    count = LayerCount(row_cost)

    def watch(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = args[0] if args else kwargs["hidden_states"]
        count.see(hidden.shape[1])

    names = (target.parts.attention_name, target.parts.mlp_name)
    hooks = [
        getattr(layer, str(name)).register_forward_pre_hook(watch, with_kwargs=True)
        for layer in target.parts.layers
        for name in names
    ]
    try:
        yield count
    finally:
        for hook in hooks:
            hook.remove()


def counted_speedup(engine: Engine, prompt: list[int], settings: GenerationSettings, *, row_cost: float = 0.0) -> float:
    """Work of plain decoding over that of a generation, choosing included; the prompt's pass counts in neither."""
    target, tokens = engine.target, 0
    with counted_layers(target, row_cost=row_cost) as count:
        for step in engine.stream(prompt, settings):
            count.work = 0.0 if step.round == 0 else count.work
            tokens += 0 if step.round == 0 else len(step.token_ids)
    return tokens * target.num_layers / count.work
