"""A layer program: which module stands at each layer during one pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfspec_runtime.errors import PlanError
from selfspec_runtime.stubs import HandIn, HandOut, MappedLayer, PartialLayer, SkippedLayer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from selfspec_runtime.architecture import DecoderParts
    from selfspec_runtime.layer_skip import LayerSkipSet


@dataclass(frozen=True)
class LayerProgram:
    """One module per layer, and optionally another head.

    Attributes:
        modules: What runs at each layer, ``num_layers`` entries.
        head: What turns final hidden states into logits; None for the model's own.
    """

    modules: tuple[nn.Module, ...]
    head: nn.Module | None = None


@dataclass(frozen=True)
class OutputLengths:
    """Length of the tuple that each kind of module returns; None where it returns a tensor."""

    layer: int | None = None
    attention: int | None = 2
    mlp: int | None = None


@dataclass(frozen=True)
class ProgramBuilder:
    """Makes programs for one model.

    Attributes:
        parts: The model's parts.
        outputs: What its modules were seen to return.
    """

    parts: DecoderParts
    outputs: OutputLengths

    @property
    def output_length(self) -> int | None:
        """Length of the tuple that a layer returns, or None for a tensor."""
        return self.outputs.layer

    def full(self) -> LayerProgram:
        """Every layer as it is."""
        return LayerProgram(self.parts.own_layers)

    def exit_at(
        self, exit_layer: int, *, weights: Sequence[Tensor] = (), head: nn.Module | None = None
    ) -> tuple[LayerProgram, HandOut]:
        """Runs ``exit_layer`` layers, then the final norm and the head.

        Args:
            exit_layer: Layers run, ``1 .. num_layers - 1``.
            weights: Optional linear exit head: ``[hidden, hidden]``, or its factors, the first to be applied first.
            head: Another head, or None for the model's own.

        Returns:
            The program, and the stub that holds the hidden states at the exit after each pass.
        """
        layers = self.parts.own_layers
        out = HandOut(layers[exit_layer - 1], self.output_length)
        rest: list[nn.Module] = [SkippedLayer(layer, self.output_length) for layer in layers[exit_layer:]]
        if weights:
            rest[0] = MappedLayer(layers[exit_layer], self.output_length, *weights)
        return LayerProgram((*layers[: exit_layer - 1], out, *rest), head), out

    def resume_at(self, exit_layer: int) -> tuple[LayerProgram, HandIn]:
        """Continues from hidden states that the first ``exit_layer`` layers computed before.

        Returns:
            The program, and the stub into which the hidden states are put before each pass.
        """
        layers = self.parts.own_layers
        into = HandIn(layers[exit_layer - 1], self.output_length)
        skipped = [SkippedLayer(layer, self.output_length) for layer in layers[: exit_layer - 1]]
        return LayerProgram((*skipped, into, *layers[exit_layer:])), into

    def without(
        self,
        skip: LayerSkipSet,
        *,
        layers: Sequence[nn.Module] | None = None,
        head: nn.Module | None = None,
    ) -> LayerProgram:
        """Leaves sub-layers out.

        Args:
            skip: What is left out.
            layers: What runs at each layer otherwise; the model's own layers by default.
            head: Another head, or None for the model's own.

        Raises:
            PlanError: The family has no such sub-module to leave out.
        """
        skip.validate_for(self.parts.num_layers)
        chosen = tuple(layers if layers is not None else self.parts.own_layers)
        modules = tuple(self._partial(layer, index, skip) for index, layer in enumerate(chosen))
        return LayerProgram(modules, head)

    def _partial(self, layer: nn.Module, index: int, skip: LayerSkipSet) -> nn.Module:
        no_attention, no_mlp = index in skip.attention, index in skip.mlp
        if no_attention and no_mlp:
            return SkippedLayer(layer, self.output_length)
        if no_attention:
            silenced = {self._name(self.parts.attention_name, "attention"): self.outputs.attention}
        elif no_mlp:
            silenced = {self._name(self.parts.mlp_name, "MLP"): self.outputs.mlp}
        else:
            return layer
        return PartialLayer(layer, self.output_length, silenced)

    def _name(self, name: str | None, role: str) -> str:
        if name is None:
            family = type(self.parts.model).__name__
            message = f"The layers of {family} have no {role} module of their own. Skip whole layers instead."
            raise PlanError(message)
        return name
