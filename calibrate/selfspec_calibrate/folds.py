"""Cross-fitting by prompt: what is fitted on traces is scored on other prompts than it was fitted on."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from selfspec_calibrate.trace import Trace

NUM_FOLDS = 4


@dataclass(frozen=True)
class FittedArrays:
    """Arrays by name.

    Attributes:
        final: Fitted on all prompts; what a calibration file keeps.
        scoring: The same, and each fold's, fitted on the other folds; what a
            :class:`~selfspec_calibrate.scoring.Scorer` wants.
    """

    final: Mapping[str, Tensor] = field(default_factory=dict)
    scoring: Mapping[str, Tensor] = field(default_factory=dict)


def folds(traces: Sequence[Trace]) -> list[int]:
    """The fold, 0 to 3, that each trace belongs to: in turn, kind after kind, and the same for equal prompts."""
    seen: dict[str, dict[str, None]] = defaultdict(dict)
    for trace in traces:
        seen[trace.kind][trace.prompt_id] = None
    in_order = [(kind, prompt_id) for kind, prompt_ids in seen.items() for prompt_id in prompt_ids]
    place = {key: index % NUM_FOLDS for index, key in enumerate(in_order)}
    return [place[trace.kind, trace.prompt_id] for trace in traces]


def in_fold(name: str, fold: int) -> str:
    """Name of the array with which a fold is scored: the one fitted on the other folds."""
    return f"{name}.fold{fold}"


def fold_arrays(arrays: Mapping[str, Tensor], fold: int) -> Mapping[str, Tensor]:
    """The arrays as a plan names them, with the fold's own in the final ones' place."""
    suffix = f".fold{fold}"
    own = {name.removesuffix(suffix): array for name, array in arrays.items() if name.endswith(suffix)}
    return {**arrays, **own}


def cross_fitted(traces: Sequence[Trace], fit: Callable[[Sequence[Trace]], Mapping[str, Tensor]]) -> FittedArrays:
    """Fits on all traces, and without each fold.

    Args:
        traces: Plain traces.
        fit: Arrays by name from traces.

    Returns:
        The arrays; none if the traces are of fewer than two prompts, where none could be scored honestly.
    """
    split = folds(traces)
    if len(set(split)) < 2:
        return FittedArrays()
    final = dict(fit(traces))
    by_fold: dict[str, Tensor] = {}
    for fold in sorted(set(split)):
        others = [trace for trace, own in zip(traces, split, strict=True) if own != fold]
        by_fold |= {in_fold(name, fold): array for name, array in fit(others).items()}
    return FittedArrays(final, final | by_fold)
