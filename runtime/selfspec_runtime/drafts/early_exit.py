"""Early exit at a layer (Elhoushi et al. 2404.16710), raw or through a linear map (Yom Din et al. 2303.09435)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field

from selfspec_runtime.drafts.draft import Draft, ExactPrefix
from selfspec_runtime.drafts.passes import PassSource
from selfspec_runtime.drafts.source import RoundContext, SourceSpec
from selfspec_runtime.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from selfspec_runtime.target import Target


class EarlyExitSource(PassSource):
    """Drafts with the first layers, and hands their hidden states to the verification.

    Args:
        target: The model.
        exit_layer: Layers run, ``1 .. num_layers - 1``.
        weight: Linear exit head ``[hidden, hidden]``, or None for the raw exit.
    """

    def __init__(self, target: Target, exit_layer: int, weight: Tensor | None = None) -> None:
        program, self._out = target.programs.exit_at(exit_layer, weight=weight)
        held = 0 if weight is None else weight.numel() * weight.element_size()
        super().__init__(target, program, origin="early_exit", extra_bytes=held)
        self.exit_layer = exit_layer
        self._hidden: list[Tensor] = []

    def propose(self, context: RoundContext) -> Draft:
        """Drafts, keeping the hidden state at the exit of every pass."""
        self._hidden = []
        return super().propose(context)

    def _after_pass(self) -> None:
        if self._out.hidden is not None:
            self._hidden.append(self._out.hidden)

    def _finished(self, draft: Draft) -> Draft:
        if self._hidden:
            draft.prefix = ExactPrefix(self.exit_layer, torch.cat(self._hidden, dim=1))
        return draft


class EarlyExitSpec(SourceSpec):
    """Plan entry for an early exit.

    Attributes:
        exit_layer: Layers run, ``1 .. num_layers - 1``.
        head: ``own`` for the model's head on the raw exit, ``linear`` for a fitted linear map before it.
    """

    kind: Literal["early_exit"] = "early_exit"
    exit_layer: int = Field(ge=1)
    head: Literal["own", "linear"] = "own"

    def build(self, target: Target, arrays: Mapping[str, Tensor]) -> EarlyExitSource:
        """Makes the source."""
        self.validate_for(target.num_layers)
        return EarlyExitSource(target, self.exit_layer, self._weight(target, arrays))

    def validate_for(self, num_layers: int) -> None:
        """Checks ``1 <= exit_layer < num_layers``."""
        if not 1 <= self.exit_layer < num_layers:
            message = (
                f"Exit layer {self.exit_layer} does not exist: the model has {num_layers} layers, so that an exit "
                f"lies between 1 and {num_layers - 1} (the number of layers that are run)."
            )
            raise PlanError(message)

    def describe(self) -> str:
        """For example ``exit after layer 8, linear head``."""
        return f"exit after layer {self.exit_layer}" + (", linear head" if self.head == "linear" else "")

    def _weight(self, target: Target, arrays: Mapping[str, Tensor]) -> Tensor | None:
        if self.head == "own":
            return None
        name = exit_head_name(self.exit_layer)
        if name not in arrays:
            message = (
                f"The linear head of exit layer {self.exit_layer} is missing: it is fitted by `selfspec calibrate` and "
                "lies beside the calibration file as .safetensors. Keep both together, or use the raw exit."
            )
            raise PlanError(message)
        return arrays[name].to(device=target.device, dtype=target.dtype)


def exit_head_name(exit_layer: int) -> str:
    """Name of an exit's linear map among a calibration's arrays."""
    return f"exit_head.{exit_layer}"
