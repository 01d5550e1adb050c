"""A plan with fitted arrays on the prompts that they were fitted on: each prompt with arrays that never saw it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from selfspec_calibrate.folds import fold_arrays
from selfspec_calibrate.measurement import MeasuredPrompt, warm_up

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from selfspec_calibrate.measurement import PlanEngine
    from selfspec_runtime.drafts.source import DraftSource
    from selfspec_runtime.generation import Generation, GenerationSettings


@dataclass
class FoldedEngine:
    """One engine for each fold of the search prompts, made when the fold's first prompt comes.

    A head that is timed on the prompts that it was fitted on drafts a little better than it will on others, and would
    be chosen for that.

    Attributes:
        make: Makes an engine from arrays by the names that the plan gives them.
        arrays: The final arrays, and each fold's, as `FittedArrays.scoring` holds them.
        fold_of: The fold of a prompt, by its token ids; a prompt that is none of them has the final arrays.
        extra_bytes: Memory beyond the model that the plan would hold: that of one engine.
    """

    make: Callable[[Mapping[str, Tensor]], PlanEngine]
    arrays: Mapping[str, Tensor]
    fold_of: Mapping[tuple[int, ...], int]
    extra_bytes: int = field(init=False)
    _engines: dict[int | None, PlanEngine] = field(init=False, default_factory=dict)
    _latest: PlanEngine | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Tries the plan once, so that one that cannot be run is refused at once.

        Raises:
            PlanError: As `Engine` does.
        """
        self.extra_bytes = self.make(self.arrays).extra_bytes

    @property
    def source(self) -> DraftSource | None:
        """What drafted in the latest generation."""
        return getattr(self._latest, "source", None)

    def generate(self, prompt_ids: list[int], settings: GenerationSettings) -> Generation:
        """Generates to the end, as `Engine.generate` does; a fold's first prompt warms its engine up before."""
        fold = self.fold_of.get(tuple(prompt_ids))
        if fold not in self._engines:
            arrays = self.arrays if fold is None else fold_arrays(self.arrays, fold)
            self._engines[fold] = self.make(arrays)
            warm_up(self._engines[fold], MeasuredPrompt("warm-up", "", tuple(prompt_ids)), settings)
        self._latest = self._engines[fold]
        return self._latest.generate(prompt_ids, settings)
