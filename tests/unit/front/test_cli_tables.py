from __future__ import annotations

import pytest
from tests.support.calibrations import QUANTIZED, calibration, evidence, kind_result, memory_step

from selfspec.cli.console import Terminal
from selfspec.cli.sheet import as_markdown, show_sheets
from selfspec.cli.tables import calibration_sheets, interval_text, next_step_up, split_text, verdict_sheet
from selfspec_runtime.calibration import Interval
from selfspec_runtime.plan import PLAIN

COPY = memory_step(QUANTIZED, name="quantized", extra_bytes=266_500, speedup=1.9)
BOTH = calibration(memory_step(), COPY)


def test_the_verdict_names_plan_baseline_prompts_and_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    show_sheets(calibration_sheets(BOTH), "table", Terminal())
    out = capsys.readouterr().out
    for part in (
        "n-gram 1-3, 4 drafts on Test CPU",
        "1.15x [1.10, 1.35]",
        "1.25x [1.10, 1.45]",
        "1.56x",
        "2.50",
        "20/70/10 %",
        "123 ms",
        "10 held-out prompts of prompts.jsonl (10 others were searched on)",
        "up to 64 new tokens each, greedy",
        "this runtime's own plain decoding",
        "identical to plain decoding on 10 of 10 prompts",
    ):
        assert part in out
    assert [row["kind"] for row in verdict_sheet(BOTH).rows] == ["chat", "code", "all"]


def test_predicted_stands_beside_measured() -> None:
    text = as_markdown(calibration_sheets(BOTH)[2])
    assert "| n-gram 1-3, 4 drafts | 1.40x | 1.30x | 10 | 1 |" in text
    assert "300 plans were predicted from 640 tokens of traces, and 2 were timed beside plain decoding." in text
    assert "The prediction is off by 8% in the median." in text


def test_the_next_step_up_is_always_shown() -> None:
    assert next_step_up(BOTH).endswith("Use it with --max-extra-memory 27%.")
    assert "NF4 copy of layers, 4 drafts, 266 kB more (27% of the weights): 1.90x [1.10, 2.10]" in next_step_up(BOTH)
    assert "no plan with more memory was found" in next_step_up(calibration())
    poor = memory_step(QUANTIZED, extra_bytes=266_500, enabled=False)
    assert "It is not worth it: It is not faster on held-out prompts." in next_step_up(calibration(memory_step(), poor))
    assert next_step_up(BOTH) in calibration_sheets(BOTH)[1].notes


def test_no_flag_is_advised_for_a_step_that_the_flag_would_not_choose() -> None:
    slower = calibration(memory_step(speedup=1.54), memory_step(QUANTIZED, extra_bytes=266_500, speedup=1.47))
    assert next_step_up(slower).endswith("1.47x [1.10, 1.67]. It is not faster, and no flag chooses it.")
    off = calibration(memory_step(enabled=False), memory_step(QUANTIZED, extra_bytes=266_500, speedup=1.2))
    assert "Use it with --max-extra-memory 27%" in next_step_up(off)


def test_plain_decoding_is_no_timed_plan() -> None:
    plain = evidence().timed[0].model_copy(update={"plan": PLAIN})
    known = evidence().model_copy(update={"timed": (*evidence().timed, plain)})
    sheet = calibration_sheets(calibration(evidence=known))[2]
    assert sheet.title.startswith("2 timed plans,")
    assert "2 were timed beside plain decoding" in sheet.notes[0]


def test_the_flag_that_is_advised_admits_the_step() -> None:
    from selfspec_runtime.memory import choose_step, parse_memory

    flag = next_step_up(BOTH).rsplit(" ", 1)[1].rstrip(".")
    assert choose_step(BOTH.steps, parse_memory(flag)) == 1


def test_the_chosen_step_is_marked() -> None:
    rows = calibration_sheets(BOTH.model_copy(update={"chosen": 1}))[1].rows
    assert [row["chosen"] for row in rows] == [False, True]


def test_a_plan_that_did_not_pay_is_said_not_to_be_enabled() -> None:
    sheet = verdict_sheet(calibration(memory_step(enabled=False)))
    assert "(not enabled)" in sheet.title
    assert "It is not faster on held-out prompts." in sheet.notes


def test_several_temperatures_get_a_column() -> None:
    warm = kind_result().model_copy(update={"sampling": "temperature 0.7", "largest_divergence_margin": None})
    step = memory_step().model_copy(update={"results": (kind_result(), warm)})
    assert [column.key for column in verdict_sheet(calibration(step)).columns][:2] == ["kind", "sampling"]
    assert "sampling" not in [column.key for column in verdict_sheet(BOTH).columns]


@pytest.mark.parametrize(
    ("dtype", "margin", "words"),
    [
        ("float32", 9e-6, "is a near tie"),
        ("float32", 0.0312, "is no near tie"),
        ("float16", 0.031, "is a near tie"),
        ("float16", 0.125, "is no near tie"),
        ("bfloat16", 0.25, "is a near tie"),
        ("bfloat16", 0.5, "is no near tie"),
        ("float8", 1e-3, "is no near tie"),
    ],
)
def test_a_divergence_is_a_tie_only_where_the_dtype_cannot_tell_the_two_apart(
    dtype: str, margin: float, words: str
) -> None:
    row = kind_result().model_copy(update={"num_identical": 8, "largest_divergence_margin": margin})
    base = calibration(memory_step().model_copy(update={"results": (row,)}))
    known = base.model_copy(update={"fingerprint": base.fingerprint.model_copy(update={"dtype": dtype})})
    (note,) = (note for note in verdict_sheet(known).notes if "on 8 of 10 prompts; where they differ" in note)
    assert words in note
    assert f"up to {margin:.2g}" in note


@pytest.mark.parametrize(
    ("interval", "text"),
    [(Interval(value=1.2), "1.20x"), (Interval(value=1.2, low=1.1, high=1.3), "1.20x [1.10, 1.30]")],
)
def test_an_interval_is_only_given_where_there_is_one(interval: Interval, text: str) -> None:
    assert interval_text(interval) == text


def test_the_split_adds_up() -> None:
    assert split_text({"draft": 0.2, "verify": 0.7, "host": 0.1}) == "20/70/10 %"
