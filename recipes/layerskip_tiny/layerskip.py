"""The LayerSkip recipe's schedules (Elhoushi et al. 2024, https://arxiv.org/abs/2404.16710), from its formulas.

Two things make a model's early layers predict: later layers are dropped more often, so that the model does not lean on
them, and the loss is taken at early layers too, through the model's one head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class LayerSkip:
    """The recipe's settings.

    Attributes:
        max_dropout: Probability of dropping the last layer at the end of training.
        exit_scale: Weight of early exits against the last layer; 1 lets them grow evenly with depth up to it.
        rotation: Every this many layers one exit takes part in a step, the next one in the next step.
    """

    max_dropout: float = 0.2
    exit_scale: float = 1.0
    rotation: int = 5

    def dropout(self, layer: int, *, num_layers: int, progress: float) -> float:
        """Probability that a sequence passes a layer by.

        It grows exponentially with depth, from 0 at the first layer, and with time, from 0 at the start: a model
        that is trained from scratch needs all of its layers first.

        Args:
            layer: Counted from 0.
            num_layers: Layers of the model.
            progress: Share of the training that is done, 0 to 1.
        """
        depth = math.exp(math.log(2) * layer / max(num_layers - 1, 1)) - 1
        time = math.exp(math.log(2) * progress) - 1
        return self.max_dropout * depth * time

    def loss_weights(self, num_layers: int, *, step: int) -> dict[int, float]:
        """Weights of the exits that take part in a step.

        The paper's weights grow with the square of the depth. Here they grow with the depth: a training of minutes has
        few steps in which the first layers can learn to predict.

        Args:
            num_layers: Layers of the model.
            step: Number of the step, which rotates the exits.

        Returns:
            Layers run before the exit (1 to ``num_layers``, the last one always) and their weights, which add up to 1.
        """
        early = [layers for layers in range(1, num_layers) if (layers - 1) % self.rotation == step % self.rotation]
        weights = {layers: self.exit_scale * layers for layers in early} | {num_layers: float(num_layers)}
        total = sum(weights.values())
        return {layers: weight / total for layers, weight in weights.items()}


#: The same training without the recipe: no layer is dropped, and only the last one has a loss.
CONTROL = LayerSkip(max_dropout=0.0, exit_scale=0.0)
