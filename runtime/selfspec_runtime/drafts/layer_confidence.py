"""How sure each layer's own output is, and which layers to leave out for it (ConfLayers, 2604.14612).

A layer's confidence is 1 less the relative entropy of the softmax over the hidden dimension of what its attention,
and of what its MLP, writes into the residual stream. A layer is left out where that falls below what is usual around
it; how far around follows from how sharply the curve bends there.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from selfspec_runtime.program import LayerProgram
from selfspec_runtime.scratch import replay
from selfspec_runtime.stubs import LayerStub, shallow_twin

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from selfspec_runtime.cache import KVCache
    from selfspec_runtime.target import Target

    Floats = NDArray[np.float64]

#: How far a bend widens the window, and how much more than the wanted share may be left out (the paper's code).
BEND_WEIGHT, TOLERATED_SHARE = 5.0, 0.25


class ConfidenceReader:
    """Reads every layer's confidence in one pass of the full model over committed tokens.

    Args:
        target: The model. Its own layers are not changed: twins of them run.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self._taps: list[list[ConfidenceTap]] = []
        self._program = LayerProgram(tuple(self._tapped(layer) for layer in target.full.modules))

    def read(self, token_ids: Tensor, cache: KVCache, *, start: int) -> Floats:
        """Reads the confidences.

        Args:
            token_ids: int64 ``[n]``, the committed tokens from ``start`` on.
            cache: Holds the target's keys and values before each of them; scratch room for the rows is needed.
            start: Position of the first.

        Returns:
            float64 ``[num_layers]``: for each layer its attention's confidence plus its MLP's, meant over tokens.
        """
        positions = torch.arange(start, start + len(token_ids), device=token_ids.device)
        replay(self.target, token_ids, cache, positions=positions, program=self._program)
        return np.array([sum(tap.taken() for tap in taps) for taps in self._taps])

    def _tapped(self, layer: nn.Module) -> nn.Module:
        parts, outputs = self.target.parts, self.target.programs.outputs
        lengths = {parts.attention_name: outputs.attention, parts.mlp_name: outputs.mlp}
        twin = shallow_twin(layer)
        taps = {name: ConfidenceTap(getattr(layer, name), length) for name, length in lengths.items() if name}
        twin._modules.update(taps)
        self._taps.append(list(taps.values()))
        return twin


class ConfidenceTap(LayerStub):
    """Runs a sub-layer and keeps how sure its output is, a number on the device."""

    def __init__(self, sublayer: nn.Module, output_length: int | None) -> None:
        super().__init__(sublayer, output_length)
        self.confidence: Tensor | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns what the sub-layer returns."""
        output = self.layer(*args, **kwargs)
        self.confidence = confidence_of(output if self.output_length is None else output[0])
        return output

    def taken(self) -> float:
        """The number of the last pass."""
        assert self.confidence is not None, "the sub-layer did not run"
        return float(self.confidence)


def confidence_of(states: Tensor) -> Tensor:
    """1 less the entropy of the softmax over the last dimension, relative to the largest there can be; a mean."""
    log_probs = states.float().log_softmax(dim=-1)
    entropy = -(log_probs.exp() * log_probs).sum(dim=-1)
    return 1.0 - entropy.mean() / math.log(states.shape[-1])


def unsure_layers(confidences: Floats, *, skip_ratio: float) -> tuple[int, ...]:
    """The layers to leave out, in order.

    Args:
        confidences: float64 ``[L]``.
        skip_ratio: Wanted share of the inner layers; up to a quarter of them more where as many are unsure. The
            first and the last layer are never left out.

    Returns:
        Indices; none if there are fewer than three layers.
    """
    inner = range(1, len(confidences) - 1)
    if not inner:
        return ()
    margins = local_margins(confidences)
    fewest = num_left_out(len(confidences), skip_ratio)
    most = max(int((skip_ratio + TOLERATED_SHARE) * len(inner)), fewest)
    # The threshold starts at the local mean and is moved until the number of layers below it is allowed.
    count = min(max(sum(margins[layer] < 0.0 for layer in inner), fewest), most, len(inner))
    return tuple(sorted(sorted(inner, key=lambda layer: margins[layer])[:count]))


def num_left_out(num_layers: int, skip_ratio: float) -> int:
    """Fewest layers to leave out: the wanted share of the inner ones, at least one."""
    return max(round(skip_ratio * (num_layers - 2)), 1)


def local_margins(confidences: Floats) -> Floats:
    """How many local deviations each layer lies above the layers around it."""
    scores = _standardised(confidences)
    margins = np.zeros(len(scores))
    for layer, reach in enumerate(_reaches(scores)):
        around = [n for n in range(layer - reach, layer + reach + 1) if n != layer and 0 <= n < len(scores)]
        deviation = max(float(scores[around].std()), 1e-6)
        margins[layer] = (scores[layer] - scores[around].mean()) / deviation
    return margins


def _reaches(scores: Floats) -> list[int]:
    """Half the window of each layer: 1, and more where the curve bends and deeper in the stack."""
    bends = np.gradient(np.gradient(scores))
    span = float(bends.max() - bends.min())
    relative = (bends - bends.min()) / span if span > 0 else np.full(len(scores), 0.5)
    centred = np.clip(relative + 0.5 - relative.mean(), 0.0, 1.0)
    depths = (np.arange(len(scores)) + 1) / len(scores)
    return [(2 + int(BEND_WEIGHT * weight)) // 2 for weight in centred * depths]


def _standardised(values: Floats) -> Floats:
    deviation = float(values.std())
    return (values - values.mean()) / deviation if deviation > 0 else np.zeros(len(values))
