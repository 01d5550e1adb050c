"""Early exit at a layer (Elhoushi et al. 2404.16710), raw or through a linear map (Yom Din et al. 2303.09435)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, Self

import torch
from pydantic import Field, model_validator

from selfspec_runtime.draft_head import chosen_head, describe_head, rank_names
from selfspec_runtime.drafts.draft import Draft, ExactPrefix
from selfspec_runtime.drafts.passes import PassSource
from selfspec_runtime.drafts.source import RoundContext, SourceSpec
from selfspec_runtime.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor

    from selfspec_runtime.draft_head import ReducedHead
    from selfspec_runtime.target import Target


class EarlyExitSource(PassSource):
    """Drafts with the first layers, and hands their hidden states to the verification.

    Args:
        target: The model.
        exit_layer: Layers run, ``1 .. num_layers - 1``.
        weights: Linear exit head, ``[hidden, hidden]`` or its factors; nothing for the raw exit.
        head: Head over a part of the vocabulary, or None for the model's own.
    """

    def __init__(
        self, target: Target, exit_layer: int, weights: Sequence[Tensor] = (), head: ReducedHead | None = None
    ) -> None:
        program, self._out = target.programs.exit_at(exit_layer, weights=weights, head=head)
        held = sum(weight.numel() * weight.element_size() for weight in weights)
        head_bytes = 0 if head is None else head.num_bytes
        super().__init__(target, program, origin="early_exit", extra_bytes=held + head_bytes)
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
        rank: Rank of the linear map, or None for all of it.
        vocab_size: Tokens that the draft can say, the most frequent ones, or None for all.
    """

    kind: Literal["early_exit"] = "early_exit"
    exit_layer: int = Field(ge=1)
    head: Literal["own", "linear"] = "own"
    rank: int | None = Field(default=None, ge=1)
    vocab_size: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _only_maps_have_a_rank(self) -> Self:
        if self.rank is not None and self.head == "own":
            message = f'rank {self.rank} was given without head "linear"'
            raise ValueError(message)
        return self

    def build(self, target: Target, arrays: Mapping[str, Tensor]) -> EarlyExitSource:
        """Makes the source."""
        self.validate_for(target.num_layers)
        head = chosen_head(target, arrays, self.vocab_size)
        return EarlyExitSource(target, self.exit_layer, self._weights(target, arrays), head)

    def validate_for(self, num_layers: int) -> None:
        """Checks ``1 <= exit_layer < num_layers``."""
        if not 1 <= self.exit_layer < num_layers:
            message = (
                f"Exit layer {self.exit_layer} does not exist: the model has {num_layers} layers, so that an exit "
                f"lies between 1 and {num_layers - 1} (the number of layers that are run)."
            )
            raise PlanError(message)

    def describe(self) -> str:
        """For example ``exit after layer 8, linear head of rank 64, 4,096 tokens``."""
        rank = f" of rank {self.rank}" if self.rank is not None else ""
        linear = f", linear head{rank}" if self.head == "linear" else ""
        return f"exit after layer {self.exit_layer}{linear}{describe_head(self.vocab_size)}"

    def array_names(self) -> tuple[str, ...]:
        """The map or its factors, and the tokens' ranks."""
        return (*self._map_names(), *rank_names(self.vocab_size))

    def _map_names(self) -> tuple[str, ...]:
        if self.head == "own":
            return ()
        return (exit_head_name(self.exit_layer),) if self.rank is None else factor_names(self.exit_layer)

    def _weights(self, target: Target, arrays: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        names = self._map_names()
        if any(name not in arrays for name in names):
            message = (
                f"The linear head of exit layer {self.exit_layer} is missing: it is fitted by `selfspec calibrate` and "
                "lies beside the calibration file as .safetensors. Keep both together, or use the raw exit."
            )
            raise PlanError(message)
        weights = [arrays[name] for name in names]
        if self.rank is not None:
            weights = self._cut(*weights)
        return tuple(weight.to(device=target.device, dtype=target.dtype).contiguous() for weight in weights)

    def _cut(self, down: Tensor, up: Tensor) -> list[Tensor]:
        """Directions are ordered by what they explain, so that a smaller rank is a beginning of a larger one."""
        rank = self.rank or down.shape[0]
        if rank > down.shape[0]:
            message = (
                f"The linear head of exit layer {self.exit_layer} was fitted with rank {down.shape[0]}, and the plan "
                f"asks for {rank}. Choose a smaller rank, or calibrate again."
            )
            raise PlanError(message)
        return [down[:rank], up[:, :rank]]


def exit_head_name(exit_layer: int) -> str:
    """Name of an exit's linear map ``[hidden, hidden]`` among a calibration's arrays."""
    return f"exit_head.{exit_layer}"


def factor_names(exit_layer: int) -> tuple[str, str]:
    """Names of the factors of an exit's low-rank map: ``[rank, hidden]``, applied first, and ``[hidden, rank]``."""
    return f"{exit_head_name(exit_layer)}.down", f"{exit_head_name(exit_layer)}.up"


def fitted_exits(names: Iterable[str]) -> tuple[int, ...]:
    """Exit layers that have a full linear map among arrays of these names, ascending."""
    found = (re.fullmatch(r"exit_head\.(\d+)", name) for name in names)
    return tuple(sorted(int(match[1]) for match in found if match))
