from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from selfspec.cli.plan_options import PlanOptions
from selfspec_runtime.controllers.confidence import ConfidenceSpec
from selfspec_runtime.errors import PlanError, UsageError
from selfspec_runtime.plan import PLAIN, DraftPlan


def early_exit(layer: int, head: str = "own") -> dict[str, Any]:
    return {"kind": "early_exit", "exit_layer": layer, "head": head}


def skipping(**skip: list[int]) -> dict[str, Any]:
    return {"kind": "layer_skip", "skip": skip}


NGRAM = {"kind": "ngram"}
QUANTIZED = {"kind": "quantized"}
SURE = {"kind": "confidence", "draft_confidence_threshold": 0.7}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"draft": "none"}, {}),
        ({"draft": "ngram"}, {"source": NGRAM}),
        ({"draft": "suffix"}, {"source": {"kind": "suffix"}}),
        ({"exit_layer": 8}, {"source": early_exit(8)}),
        ({"draft": "early-exit", "exit_layer": 8, "head": "linear"}, {"source": early_exit(8, "linear")}),
        ({"skip_mlp": "12,4-5"}, {"source": skipping(mlp=[4, 5, 12])}),
        ({"draft": "quantized"}, {"source": QUANTIZED}),
        ({"draft": "quantized", "skip_attention": "3"}, {"source": {**QUANTIZED, "skip": {"attention": [3]}}}),
        ({"draft": "ngram-first"}, {"source": {"kind": "ngram_first", "then": QUANTIZED}}),
        ({"draft": "ngram-first", "exit_layer": 2}, {"source": {"kind": "ngram_first", "then": early_exit(2)}}),
        ({"draft": "ngram-first", "skip_mlp": "2"}, {"source": {"kind": "ngram_first", "then": skipping(mlp=[2])}}),
        (
            {"draft": "ngram", "num_draft_tokens": 3},
            {"source": NGRAM, "controller": {"kind": "fixed", "num_draft_tokens": 3}},
        ),
        ({"draft": "ngram", "draft_threshold": 0.7}, {"source": NGRAM, "controller": SURE}),
        (
            {"draft": "ngram", "draft_threshold": 0.7, "num_draft_tokens": 3},
            {"source": NGRAM, "controller": {**SURE, "num_draft_tokens": 3}},
        ),
    ],
)
def test_options_become_a_plan(options: dict[str, Any], expected: dict[str, Any]) -> None:
    assert PlanOptions(**options).plan(None) == DraftPlan.model_validate(expected)


def test_without_options_and_without_a_file_there_is_no_plan() -> None:
    assert PlanOptions().plan(None) is None


STORED = DraftPlan.model_validate(
    {
        "source": {
            "kind": "ngram_first",
            "ngram": {"max_match": 4, "num_draft_tokens": 9},
            "then": {"kind": "early_exit", "exit_layer": 5, "head": "linear"},
        },
        "controller": {"kind": "confidence", "num_draft_tokens": 8, "draft_confidence_threshold": 0.5},
    }
)


def over(**options: Any) -> DraftPlan:
    made = PlanOptions(**options).plan(STORED)
    assert made is not None
    return made


def test_without_options_the_files_plan_stands() -> None:
    assert PlanOptions(max_extra_memory="30%").plan(STORED) is None


def test_the_number_that_is_asked_for_is_the_number_that_is_drafted() -> None:
    made = over(num_draft_tokens=3)
    assert made.max_draft_tokens == 3
    assert made.source is not None
    assert made.source.model_dump()["ngram"] == {
        "kind": "ngram",
        "min_match": 1,
        "max_match": 4,
        "num_draft_tokens": None,
    }
    assert made.controller.model_dump()["draft_confidence_threshold"] == 0.5


def test_a_threshold_keeps_the_files_draft() -> None:
    made = over(draft_threshold=0.9)
    assert made.source == STORED.source
    assert made.controller == ConfidenceSpec(num_draft_tokens=8, draft_confidence_threshold=0.9)


def test_another_draft_takes_the_files_place() -> None:
    assert over(draft="none") == PLAIN
    assert over(exit_layer=3).describe() == "exit after layer 3, up to 8 drafts while sure of 0.50"
    assert (
        over(draft="ngram-first").source
        == DraftPlan.model_validate(
            {"source": {"kind": "ngram_first", "then": {"kind": "early_exit", "exit_layer": 5, "head": "linear"}}}
        ).source
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draft": "early-exit"}, "--draft early-exit needs --exit-layer"),
        ({"draft": "layer-skip"}, "--draft layer-skip needs --skip-attention or --skip-mlp"),
        ({"draft": "ngram", "exit_layer": 3}, "--exit-layer does not go with --draft ngram"),
        ({"draft": "suffix", "exit_layer": 3}, "--exit-layer does not go with --draft suffix"),
        ({"draft": "none", "skip_mlp": "3"}, "--skip-mlp does not go with --draft none"),
        ({"exit_layer": 3, "skip_mlp": "3"}, "--skip-mlp does not go with --draft early-exit"),
        ({"draft": "quantized", "head": "linear"}, "--head does not go with --draft quantized"),
        ({"head": "linear"}, "--head does not go with any draft"),
        ({"num_draft_tokens": 3}, "need a draft: add --draft"),
        ({"exit_layer": 0}, "--exit-layer cannot be 0: input should be greater than or equal to 1"),
        ({"exit_layer": -1}, "--exit-layer cannot be -1"),
        ({"draft": "ngram", "num_draft_tokens": 0}, "--num-draft-tokens cannot be 0"),
        ({"draft": "ngram", "draft_threshold": 1.5}, "--draft-threshold cannot be 1.5"),
    ],
)
def test_contradictions_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PlanOptions(**options).plan(None)


def test_a_whole_plan_takes_the_files_place(tmp_path: Path) -> None:
    asked = DraftPlan.model_validate({"source": {"kind": "clasp", "num_skipped": 3}, "controller": SURE})
    assert over(whole_plan=asked.model_dump_json()) == asked
    (tmp_path / "plan.json").write_text(asked.model_dump_json())
    assert over(whole_plan=f"@{tmp_path / 'plan.json'}") == asked
    assert over(whole_plan="{}") == PLAIN


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"whole_plan": "[]"}, "--plan is '\\[\\]'. Write a JSON object"),
        ({"whole_plan": "@none.json"}, "--plan: none.json cannot be read"),
        ({"whole_plan": '{"source": {"kind": "sufix"}}'}, "--plan: source cannot be .*'early_exit', 'layer_skip'"),
        ({"whole_plan": '{"source": {"kind": "swift"}}'}, "--plan: source.swift.skip is missing"),
        ({"whole_plan": '{"sorce": {}}'}, "--plan: sorce cannot be {}: extra inputs"),
        ({"whole_plan": "{}", "draft": "ngram"}, "write --draft into it, or leave --plan out"),
        ({"whole_plan": "{}", "num_draft_tokens": 2}, "write --num-draft-tokens into it"),
    ],
)
def test_a_whole_plan_is_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PlanOptions(**options).plan(STORED)


@pytest.mark.parametrize("text", ["a", "3-", "5-2", "-1"])
def test_lists_of_layers_are_checked(text: str) -> None:
    with pytest.raises(PlanError, match="is not a layer index or range"):
        PlanOptions(skip_mlp=text).plan(None)


def test_a_file_is_named_once(tmp_path: Path) -> None:
    first, second = Path("a.json"), Path("b.json")
    assert PlanOptions(calibration=first).file(None) == first
    assert PlanOptions(calib=first).file("model") == first
    assert PlanOptions(calibration=first, calib=first).file(None) == first
    with pytest.raises(UsageError, match=r"Two calibration files are named, a\.json and b\.json"):
        PlanOptions(calibration=first, calib=second).file(None)


def test_a_file_in_the_models_folder_or_here_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    assert PlanOptions().file(None) is None
    assert PlanOptions().file("model") is None
    (tmp_path / "selfspec.json").touch()
    assert PlanOptions().file(None) == Path("selfspec.json")
    assert PlanOptions().file("model") is None
    (tmp_path / "model" / "selfspec.json").touch()
    assert PlanOptions().file("model") == Path("model/selfspec.json")
