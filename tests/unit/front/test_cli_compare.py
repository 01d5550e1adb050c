from __future__ import annotations

import json
import re
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.calibrations import NGRAM, QUANTIZED, calibration, memory_step

from selfspec.cli.comparison_tables import comparison_sheets
from selfspec_calibrate.comparison import (
    CalibratedResult,
    Comparison,
    FamilyResult,
    MeasuredPlan,
    SpecBenchGroup,
    SpecBenchResult,
)
from selfspec_calibrate.events import Listener, Noted
from selfspec_calibrate.settings import CalibrationSettings
from selfspec_runtime.calibration import Interval
from selfspec_runtime.errors import Interrupted
from selfspec_runtime.plan import DraftPlan

if TYPE_CHECKING:
    from tests.support.command_line import CommandLine

BASE = ("compare", "-m", "model")


def measured(plan: dict[str, object], speedup: float, *, extra_bytes: int = 0) -> MeasuredPlan:
    return MeasuredPlan(
        plan=DraftPlan.model_validate(plan),
        extra_bytes=extra_bytes,
        extra_share=extra_bytes / 1_000_000,
        draft_cost=0.25,
        results=memory_step(plan, speedup=speedup).results,
    )


CHOOSING = measured(NGRAM, 0.8).model_copy(update={"choosing_share": 0.04})


def comparison(*, spec_bench: bool = False) -> Comparison:
    base = calibration(memory_step())
    group = SpecBenchGroup(
        group="Overall",
        num_questions=6,
        plain_tokens_per_s=20.0,
        tokens_per_s=25.0,
        speedup=1.25,
        mean_accepted_tokens=2.5,
    )
    return Comparison(
        created=base.created,
        selfspec_version=base.selfspec_version,
        model=base.model,
        fingerprint=base.fingerprint,
        machine=base.machine,
        sampling=base.sampling,
        max_new_tokens=base.max_new_tokens,
        data=base.data,
        families=(
            FamilyResult(
                family="quantized",
                title="NF4 copy",
                best=measured(QUANTIZED, 1.9, extra_bytes=270_000),
                num_timed=3,
                search_s=42.0,
                is_fastest=True,
            ),
            FamilyResult(family="ngram", title="n-gram lookup", best=CHOOSING, num_timed=1, search_s=5.0),
            FamilyResult(family="fewer_experts", title="fewer experts", left_out="the model has no routed experts"),
            FamilyResult(
                family="swift",
                title="SWIFT",
                best=measured(NGRAM, 1.0).model_copy(update={"results": (), "failure": "memory ran out"}),
            ),
        ),
        calibrated=(
            CalibratedResult(
                step="zero",
                measured=measured(NGRAM, 1.25),
                fastest_family="ngram",
                against_fastest=Interval(value=1.01, low=0.98, high=1.04),
            ),
        ),
        spec_bench=(SpecBenchResult(name="ngram", plan=DraftPlan.model_validate(NGRAM), groups=(group,)),)
        if spec_bench
        else (),
        common_s=60.0,
    )


class Comparing:
    """Stands in for the comparison."""

    def __init__(self) -> None:
        self.asked: list[tuple[CalibrationSettings, bool]] = []
        self.error: BaseException | None = None

    def compare(self, settings: CalibrationSettings, listener: Listener, *, spec_bench: bool) -> Comparison:
        self.asked.append((settings, spec_bench))
        listener(Noted("SWIFT is slow today."))
        if self.error is not None:
            raise self.error
        return comparison(spec_bench=spec_bench)


@pytest.fixture
def comparing(monkeypatch: pytest.MonkeyPatch) -> Comparing:
    made = Comparing()
    module = types.ModuleType("selfspec_calibrate.compare")
    module.compare = made.compare  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "selfspec_calibrate.compare", module)
    return made


def test_families_losers_and_what_is_left_out_are_shown(selfspec_command: CommandLine, comparing: Comparing) -> None:
    run = selfspec_command(*BASE, "-p", "data.jsonl", "--format", "md")
    assert run.code == 0
    lines = [line for line in run.out.splitlines() if line.startswith("|")]
    first = next(line for line in lines if "NF4 copy |" in line)
    assert first.startswith("| → | NF4 copy |")
    assert "1.90x" in first
    assert "270 kB" in first
    assert first.endswith("| – | 3 | 42 s |"), "it chooses nothing while it decodes"
    assert next(line for line in lines if "n-gram lookup |" in line).endswith("| 4% | 1 | 5 s |")
    assert any("n-gram lookup" in line and "0.80x" in line for line in lines)
    assert "| fewer experts | the model has no routed experts |" in lines
    assert "| SWIFT | its plan failed on a held-out prompt: memory ran out |" in lines
    assert any("1.01x [0.98, 1.04]" in line for line in lines)
    assert "SWIFT is slow today." in run.err
    assert "Written to compare.json." in run.err


def test_the_default_budget_is_half_an_hour(selfspec_command: CommandLine, comparing: Comparing) -> None:
    selfspec_command(*BASE, "-p", "data.jsonl")
    selfspec_command(*BASE, "-p", "data.jsonl", "--budget", "5m", "-o", "other.json")
    assert [settings.budget_s for settings, _ in comparing.asked] == [1800.0, 300.0]
    assert [settings.output for settings, _ in comparing.asked] == [Path("compare.json"), Path("other.json")]


@pytest.mark.parametrize("option", ["--require-speedup", "--max-extra-memory", "--also-temperature"])
def test_what_is_said_of_a_chosen_plan_is_refused_where_none_is_chosen(
    selfspec_command: CommandLine, comparing: Comparing, option: str
) -> None:
    run = selfspec_command(*BASE, "-p", "p.jsonl", option, "1")
    assert run.code == 2
    assert f"No such option: {option}" in " ".join(run.err.split())


def test_tables_are_written_as_markdown_too(selfspec_command: CommandLine, comparing: Comparing) -> None:
    run = selfspec_command(*BASE, "-p", "data.jsonl", "--markdown", "tables/table.md", "--format", "json")
    assert run.code == 0
    assert json.loads(run.out)["families"]["rows"][0]["family"] == "quantized"
    written = Path("tables/table.md").read_text(encoding="utf-8")
    assert "| → | NF4 copy |" in written
    assert "Draft cost: time of a draft token over a plain step." in written


def test_an_older_document_is_replaced_whole(selfspec_command: CommandLine, comparing: Comparing) -> None:
    Path("table.md").write_text("the old one")
    Path("same.md").hardlink_to("table.md")
    assert selfspec_command(*BASE, "-p", "data.jsonl", "--markdown", "table.md").code == 0
    assert "| → | NF4 copy |" in Path("table.md").read_text(encoding="utf-8")
    assert Path("same.md").read_text() == "the old one"


def test_a_document_that_cannot_be_written_names_its_own_option(
    selfspec_command: CommandLine, comparing: Comparing
) -> None:
    run = selfspec_command(*BASE, "-p", "data.jsonl", "--markdown", ".")
    assert run.code == 2
    assert "Name a file with --markdown, such as compare.md." in run.err
    assert not comparing.asked


def test_the_help_is_about_a_comparison(selfspec_command: CommandLine) -> None:
    text = " ".join(re.sub("[│╭╮╰╯─]", " ", selfspec_command("compare", "--help").out).split())
    assert "The comparison file to write (default compare.json)." in text
    assert "(default 30m)" in text
    assert "calibration file" not in text
    assert "verdict" not in text


def test_spec_bench_takes_the_place_of_prompts(selfspec_command: CommandLine, comparing: Comparing) -> None:
    run = selfspec_command(*BASE, "--spec-bench", "question.jsonl", "--format", "md")
    (settings, spec_bench) = comparing.asked[0]
    assert settings.prompts == Path("question.jsonl")
    assert spec_bench
    assert "| ngram | Overall | 6 | 20.0 | 25.0 | 1.25x | 0.80x | 2.50 |" in run.out
    both = selfspec_command(*BASE, "--spec-bench", "question.jsonl", "-p", "data.jsonl")
    assert both.code == 2
    assert "--spec-bench takes the place of --prompts" in both.err


def test_ctrl_c_ends_with_its_own_code(selfspec_command: CommandLine, comparing: Comparing) -> None:
    comparing.error = Interrupted("Interrupted: 3 timed plans are saved. Run the same command again.")
    run = selfspec_command(*BASE, "-p", "data.jsonl")
    assert run.code == 130
    assert "Run the same command again" in run.err


def test_kinds_are_shown_where_there_are_several() -> None:
    one = comparison()
    assert [sheet.name for sheet in comparison_sheets(one)] == ["families", "calibrated", "left_out"]
    several = one.model_copy(update={"data": one.data.model_copy(update={"kinds": {"chat": 4, "code": 4}})})
    kinds = next(sheet for sheet in comparison_sheets(several) if sheet.name == "kinds")
    assert [column.key for column in kinds.columns] == ["title", "chat", "code", "all"]
    assert kinds.rows[0]["code"] == 2.0


@pytest.mark.parametrize(
    ("num_timed", "words"),
    [(4, "4 of 10 search prompts"), (10, "chosen on 10 search prompts"), (None, "chosen on search prompts and")],
)
def test_the_prompts_that_plans_were_timed_on_are_counted_not_those_that_were_traced(
    num_timed: int | None, words: str
) -> None:
    (note, *_) = comparison_sheets(comparison().model_copy(update={"num_timed": num_timed}))[0].notes
    assert words in note


def test_a_source_that_never_chose_is_said_to_be_ranked_with_its_first_set() -> None:
    base = comparison()
    idle = base.families[1].model_copy(update={"best": CHOOSING.model_copy(update={"choosing_share": 0.0})})
    sheet = comparison_sheets(base.model_copy(update={"families": (base.families[0], idle)}))[0]
    assert sheet.rows[1]["choosing_share"] == 0.0
    assert any("ranked with the set it begins with" in note for note in sheet.notes)
    assert not any("it begins with" in note for note in comparison_sheets(base)[0].notes)


def test_the_fastest_row_is_said_to_be_a_maximum() -> None:
    assert any("The fastest of 3 rows is the largest" in note for note in comparison_sheets(comparison())[0].notes)


def test_the_file_is_read_as_it_was_written() -> None:
    base = comparison(spec_bench=True)
    assert Comparison.model_validate_json(base.model_dump_json()) == base
