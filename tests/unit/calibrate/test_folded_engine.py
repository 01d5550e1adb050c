from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from tests.support.scripted import ScriptedEngine

from selfspec_calibrate.folded_engine import FoldedEngine
from selfspec_calibrate.folds import in_fold
from selfspec_calibrate.measurement import WARM_UP_TOKENS
from selfspec_calibrate.session import Session
from selfspec_runtime.errors import PlanError
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.plan import PLAIN, DraftPlan

SETTINGS = GenerationSettings(max_new_tokens=100)
ARRAYS = {"head": torch.tensor(9), in_fold("head", 0): torch.tensor(0), in_fold("head", 1): torch.tensor(1)}
FOLD_OF = {(10,): 0, (11,): 1, (12,): 0}
HEAD_PLAN = DraftPlan.model_validate({"source": {"kind": "early_exit", "exit_layer": 1, "head": "linear"}})


class Made:
    """Makes engines and remembers them by the head that they drafted with."""

    def __init__(self) -> None:
        self.engines: dict[int, ScriptedEngine] = {}

    def __call__(self, arrays: Mapping[str, torch.Tensor]) -> ScriptedEngine:
        engine = ScriptedEngine(extra_bytes=7)
        engine.source = int(arrays["head"])  # type: ignore[attr-defined]
        return self.engines.setdefault(int(arrays["head"]), engine)


def decoded(engine: ScriptedEngine) -> list[tuple[int, ...]]:
    return [ids for ids, used in zip(engine.calls, engine.settings, strict=True) if used == SETTINGS]


def test_each_prompt_is_decoded_with_a_head_that_never_saw_it() -> None:
    made = Made()
    engine = FoldedEngine(made, ARRAYS, FOLD_OF)
    for prompt in ([10], [11], [12], [10], [77]):
        engine.generate(prompt, SETTINGS)
        assert engine.source == FOLD_OF.get(tuple(prompt), 9)  # type: ignore[comparison-overlap]
    assert {head: decoded(each) for head, each in made.engines.items()} == {
        0: [(10,), (12,), (10,)],
        1: [(11,)],
        9: [(77,)],
    }


def test_each_fold_s_engine_is_warmed_up_once() -> None:
    made = Made()
    engine = FoldedEngine(made, ARRAYS, FOLD_OF)
    for prompt in ([10], [12]):
        engine.generate(prompt, SETTINGS)
    assert [each.max_new_tokens for each in made.engines[0].settings] == [WARM_UP_TOKENS, 100, 100]
    assert set(made.engines) == {0, 9}


def test_it_holds_what_one_engine_holds_and_fails_as_one() -> None:
    assert FoldedEngine(Made(), ARRAYS, FOLD_OF).extra_bytes == 7

    def refuse(arrays: Mapping[str, torch.Tensor]) -> ScriptedEngine:
        raise PlanError("no such exit")

    with pytest.raises(PlanError):
        FoldedEngine(refuse, ARRAYS, FOLD_OF)


def test_only_plans_with_fitted_arrays_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Mapping[str, Any]] = []

    def engine(self: Session, plan: DraftPlan, arrays: Mapping[str, Any]) -> ScriptedEngine:
        given.append(arrays)
        return ScriptedEngine()

    monkeypatch.setattr(Session, "_engine", engine)
    unused: Any = None
    parts = (unused, unused, unused, unused, unused, unused, unused, ())
    session = Session(*parts, arrays={"head": ARRAYS["head"]}, fold_arrays=ARRAYS, fold_of=FOLD_OF)
    assert isinstance(session.search_engine(PLAIN), ScriptedEngine)
    assert isinstance(session.search_engine(HEAD_PLAN), FoldedEngine)
    assert isinstance(session.engine(HEAD_PLAN), ScriptedEngine)
    assert given == [session.arrays, ARRAYS, session.arrays]
