"""Modules that stand in for a decoder layer during one pass.

A pass runs another list of layers than the model's own: originals run as they
are, stubs leave a layer out, hand its output out, or hand a stored hidden state in. Nothing holds a mode that
an exception could leave behind.
"""

from __future__ import annotations

import copy
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from torch import Tensor


class LayerStub(nn.Module):
    """Base: looks like the layer it stands for (families read attributes off their layers).

    Args:
        layer: The layer that this stub stands for.
        output_length: Length of the tuple that the layer returns, or None if it returns a tensor.
    """

    def __init__(self, layer: nn.Module, output_length: int | None) -> None:
        super().__init__()
        # Not registered as a sub-module: a stub owns no weights and must not appear to.
        self.__dict__["layer"] = layer
        self.output_length = output_length

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["layer"], name)

    def shaped(self, hidden_states: Tensor) -> Any:
        """The hidden states in the form that the layer returns them."""
        if self.output_length is None:
            return hidden_states
        return (hidden_states, *(None,) * (self.output_length - 1))


class Observed(LayerStub):
    """Runs a module and notes in ``output_length`` what it returned.

    Args:
        layer: A layer or a sub-layer.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__(layer, None)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns what the module returns."""
        output = self.layer(*args, **kwargs)
        self.output_length = len(output) if isinstance(output, tuple) else None
        return output


class SkippedLayer(LayerStub):
    """The identity."""

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Any:
        """Returns ``[1, n, hidden]`` unchanged."""
        return self.shaped(hidden_states)


class HandOut(LayerStub):
    """Runs a layer and keeps its output.

    Attributes:
        hidden: Output of the last pass, ``[1, n, hidden]``.
    """

    def __init__(self, layer: nn.Module, output_length: int | None) -> None:
        super().__init__(layer, output_length)
        self.hidden: Tensor | None = None

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Returns what the layer returns."""
        output = self.layer(hidden_states, *args, **kwargs)
        self.hidden = output if self.output_length is None else output[0]
        return output


class HandIn(LayerStub):
    """Ignores its input and hands stored hidden states in.

    Attributes:
        hidden: What the next pass continues from, ``[1, n, hidden]``.
    """

    def __init__(self, layer: nn.Module, output_length: int | None) -> None:
        super().__init__(layer, output_length)
        self.hidden: Tensor | None = None

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Any:
        """Returns the stored hidden states."""
        del hidden_states
        assert self.hidden is not None, "nothing was stored to resume from"
        return self.shaped(self.hidden)


class MappedLayer(LayerStub):
    """An exit: hands its input, sent through a linear map, on to the final norm.

    Args:
        layer: The layer that this stub stands for.
        output_length: As in :class:`LayerStub`.
        weights: ``[hidden, hidden]``, so that the output is ``h + h @ weight.T``; or the map's factors, ``[rank,
            hidden]`` and ``[hidden, rank]``.
    """

    def __init__(self, layer: nn.Module, output_length: int | None, *weights: Tensor) -> None:
        super().__init__(layer, output_length)
        self.__dict__["weights"] = weights

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Any:
        """Returns the mapped hidden states, ``[1, n, hidden]``."""
        mapped = reduce(nn.functional.linear, self.weights, hidden_states)
        return self.shaped(hidden_states + mapped)


class PartialLayer(LayerStub):
    """Runs a layer with its attention or its MLP contributing nothing.

    Args:
        layer: The layer that this stub stands for.
        output_length: As in :class:`LayerStub`.
        silenced: Names of the sub-modules that are left out, each with the length of the tuple that it
            returns (None for a tensor).
    """

    def __init__(self, layer: nn.Module, output_length: int | None, silenced: dict[str, int | None]) -> None:
        super().__init__(layer, output_length)
        self.silenced = {name: Silence(getattr(layer, name), length) for name, length in silenced.items()}

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Returns what the layer returns without the silenced sub-layers."""
        children = self.layer._modules
        originals = {name: children[name] for name in self.silenced}
        try:
            children.update(self.silenced)
            return self.layer(hidden_states, *args, **kwargs)
        finally:
            children.update(originals)


class Silence(nn.Module):
    """A sub-layer whose contribution to the residual stream is nothing.

    Bloom and MPT add the residual inside the sub-layer and pass it in; there the residual is returned.

    Args:
        sublayer: The sub-layer that this one stands for.
        output_length: Length of the tuple that it returns, or None if it returns a tensor.
    """

    def __init__(self, sublayer: nn.Module, output_length: int | None) -> None:
        super().__init__()
        self.__dict__["sublayer"] = sublayer
        self.output_length = output_length

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["sublayer"], name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns zeros of the hidden states' shape, with None for whatever else the sub-layer returns."""
        hidden_states = args[0] if args else kwargs["hidden_states"]
        nothing = kwargs["residual"] if "residual" in kwargs else torch.zeros_like(hidden_states)
        if self.output_length is None:
            return nothing
        return (nothing, *(None,) * (self.output_length - 1))


def shallow_twin(module: nn.Module) -> nn.Module:
    """A module with containers of its own, whose parameters, attributes and children are the original's."""
    twin = copy.copy(module)
    twin.__dict__["_modules"] = dict(module._modules)
    twin.__dict__["_parameters"] = dict(module._parameters)
    twin.__dict__["_buffers"] = dict(module._buffers)
    return twin
