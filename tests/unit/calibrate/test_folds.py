from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from selfspec_calibrate.folds import cross_fitted, fold_arrays, folds, in_fold
from selfspec_calibrate.trace import Trace


def traces_of(names: str) -> list[Trace]:
    return [Trace(name, "test", (1,), (2, 3)) for name in names]


def sizes(chosen: Sequence[Trace]) -> dict[str, Tensor]:
    """An array that tells what it was fitted on."""
    return {"seen": torch.tensor([ord(trace.prompt_id) for trace in chosen])}


def test_every_trace_is_scored_with_what_was_fitted_on_all_other_folds() -> None:
    traces = traces_of("abcdefga")
    fitted = cross_fitted(traces, sizes)
    assert fitted.final["seen"].tolist() == [ord(name) for name in "abcdefga"]
    for trace, fold in zip(traces, folds(traces), strict=True):
        seen = fold_arrays(fitted.scoring, fold)["seen"].tolist()
        assert ord(trace.prompt_id) not in seen
        others = [other for other, own in zip(traces, folds(traces), strict=True) if own != fold]
        assert seen == [ord(other.prompt_id) for other in others]


def test_one_prompt_gives_nothing() -> None:
    fitted = cross_fitted(traces_of("aa"), sizes)
    assert fitted.final == fitted.scoring == {}


def test_names_of_folds_are_apart() -> None:
    fitted = cross_fitted(traces_of("ab"), sizes)
    assert set(fitted.scoring) == {"seen", in_fold("seen", 0), in_fold("seen", 1)}
