"""Which sub-layers a draft leaves out (Zhang et al. 2309.08168, Xia et al. 2410.06916)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer

from selfspec_runtime.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterable

#: An index or a range; no model has more than four digits of layers, and a slip must not fill the memory.
RANGE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")


def _as_indices(value: object) -> frozenset[int]:
    if not isinstance(value, list | tuple | set | frozenset):
        message = f"expected a list of layer indices, got {value!r}"
        raise ValueError(message)
    if not all(isinstance(index, int) and not isinstance(index, bool) for index in value):
        message = f"layer indices are whole numbers, got {sorted(map(repr, value))}"
        raise ValueError(message)
    return frozenset(value)


LayerIndices = Annotated[frozenset[int], BeforeValidator(_as_indices), PlainSerializer(sorted, return_type=list[int])]


class LayerSkipSet(BaseModel):
    """Attention and MLP sub-layers, by layer index from 0, that a draft does not run.

    Attributes:
        attention: Layers whose attention contributes nothing to the draft.
        mlp: Layers whose MLP contributes nothing to the draft.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    attention: LayerIndices = frozenset()
    mlp: LayerIndices = frozenset()

    @classmethod
    def at(cls, positions: Iterable[int]) -> Self:
        """The sub-layers at these places in the order of execution: layer l's attention at 2 l, its MLP at 2 l + 1."""
        places = frozenset(positions)
        return cls(
            attention=frozenset(place // 2 for place in places if place % 2 == 0),
            mlp=frozenset(place // 2 for place in places if place % 2 == 1),
        )

    @classmethod
    def whole(cls, layers: Iterable[int]) -> Self:
        """Both sub-layers of each of these layers."""
        indices = frozenset(layers)
        return cls(attention=indices, mlp=indices)

    @property
    def positions(self) -> frozenset[int]:
        """Places of the sub-layers in the order of execution; the inverse of :meth:`at`."""
        return frozenset([*(2 * layer for layer in self.attention), *(2 * layer + 1 for layer in self.mlp)])

    def __len__(self) -> int:
        """Number of skipped sub-layers."""
        return len(self.attention) + len(self.mlp)

    def validate_for(self, num_layers: int) -> None:
        """Checks the indices against a model.

        Raises:
            PlanError: An index lies outside ``0 .. num_layers - 1``.
        """
        for name, indices in (("attention", self.attention), ("mlp", self.mlp)):
            wrong = sorted(index for index in indices if not 0 <= index < num_layers)
            if wrong:
                message = (
                    f"The skip set names {name} sub-layers {wrong}, but the model has layers 0 to "
                    f"{num_layers - 1}. Correct --skip-{name}."
                )
                raise PlanError(message)

    def describe(self) -> str:
        """Short form for tables, for example ``skip A4,7-9 M12``."""
        parts = [f"{k}{compact(v)}" for k, v in (("A", self.attention), ("M", self.mlp)) if v]
        return "skip " + " ".join(parts) if parts else "skip nothing"


def compact(indices: frozenset[int]) -> str:
    """Writes indices as ranges: ``{4, 7, 8, 9}`` is ``4,7-9``."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def parse_indices(text: str) -> frozenset[int]:
    """Reads ``4,7-9``; the inverse of :func:`compact`.

    Raises:
        PlanError: The text is not a list of indices and ranges.
    """
    indices: set[int] = set()
    for part in filter(None, (p.strip() for p in text.split(","))):
        match = RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if last < first:
            message = f"{part!r} is not a layer index or range. Write something like 4,7-9."
            raise PlanError(message)
        indices.update(range(first, last + 1))
    return frozenset(indices)
