from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.dynamic_plans import DYNAMIC_SOURCES, dynamic_plan
from tests.support.planted_world import EXIT, NF4, NGRAM, SKIPS, plan_of
from tests.support.scripted import ScriptedFactory, scripted_prompts

from selfspec_calibrate.comparison import CalibratedResult, FamilyResult
from selfspec_calibrate.comparison_rows import ComparisonRows
from selfspec_calibrate.draft_families import TABLE
from selfspec_calibrate.family_contest import NOT_TIMED, contestants
from selfspec_calibrate.held_out import HeldOut
from selfspec_calibrate.selection import Selected
from selfspec_runtime.calibration import TimedPlan
from selfspec_runtime.errors import NumericalError
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.plan import DraftPlan

GREEDY = GenerationSettings(max_new_tokens=100)
LOOKUP, SKIP, COPY, DEEP = (plan_of(source) for source in (NGRAM, SKIPS, NF4, EXIT))
SPEEDS = {LOOKUP: 1.5, SKIP: 0.8, COPY: 2.0, DEEP: 0.5}
BYTES = {COPY: 270}


def timed(plan: DraftPlan, speedup: float, *, num_prompts: int = 4, decode_s: float = 3.0) -> TimedPlan:
    return TimedPlan(
        plan=plan, predicted_speedup=None, measured_speedup=speedup, num_prompts=num_prompts, decode_s=decode_s
    )


def _no_margin(prompt_ids: Sequence[int], common_ids: Sequence[int], settings: GenerationSettings) -> float:
    raise AssertionError("nothing diverged")


def rows_of(plans: list[DraftPlan], **changes: Any) -> ComparisonRows:
    factory = ScriptedFactory(
        lambda plan, ids: (1.0 + 0.1 * (ids[0] % 3)) / SPEEDS.get(plan, 1.0),
        extra_bytes=lambda plan: BYTES.get(plan, 0),
    )
    given = {"make_engine": factory, "prompts": scripted_prompts(6, kinds=("chat", "code")), "settings": (GREEDY,)}
    runs = HeldOut(**{**given, "margin": _no_margin, **changes}).measure(plans)
    return ComparisonRows(runs=runs, extra_bytes=lambda plan: BYTES.get(plan, 0), weight_bytes=1000)


def families(*plans: DraftPlan, left_out: dict[str, str] | None = None, **changes: Any) -> list[FamilyResult]:
    found = contestants([timed(plan, SPEEDS[plan]) for plan in plans], left_out or {}, num_prompts=4)
    return list(rows_of(list(plans), **changes).families(found))


def calibrated(plan: DraftPlan, *plans: DraftPlan, step: str = "zero") -> CalibratedResult:
    rows = rows_of(list(plans))
    found = contestants([timed(each, SPEEDS[each]) for each in plans], {}, num_prompts=4)
    selected = Selected(step=step, plan=plan, extra_bytes=BYTES.get(plan, 0), speedup=1.0)  # type: ignore[arg-type]
    (result,) = rows.calibrated([selected], rows.families(found))
    return result


def test_families_come_fastest_first_and_losers_stay() -> None:
    found = families(LOOKUP, SKIP, COPY)
    names = [row.family for row in found]
    assert names[:3] == ["quantized", "ngram", "layer_skip"]
    assert set(names) == {family.name for family in TABLE}
    speeds = [row.best.overall.speedup.value for row in found[:3]]  # type: ignore[union-attr]
    assert speeds == pytest.approx([2.0, 1.5, 0.8])
    assert [row.is_fastest for row in found] == [True] + [False] * (len(TABLE) - 1)


def test_a_row_says_what_a_plan_costs_and_holds() -> None:
    copy = families(LOOKUP, COPY)[0].best
    assert copy is not None
    assert (copy.extra_bytes, copy.extra_share) == (270, 0.27)
    assert {row.kind for row in copy.results} == {"chat", "code", "all"}
    # A quarter of a run of 10 tokens at half the plain time each, over 11 draft tokens.
    assert copy.draft_cost == pytest.approx(0.25 * 10 * 0.5 / 11)
    assert copy.choosing_share is None
    assert copy.overall is not None
    assert copy.overall.speedup.low is not None


@pytest.mark.parametrize("kind", DYNAMIC_SOURCES)
def test_a_source_that_found_no_time_to_choose_chose_for_none_of_it(kind: str) -> None:
    plan = dynamic_plan(DYNAMIC_SOURCES[kind])
    assert rows_of([plan]).measured(plan).choosing_share == 0.0


def test_families_without_a_plan_say_why() -> None:
    title = next(family.title for family in TABLE if family.name == "swift")
    found = {row.family: row for row in families(LOOKUP, left_out={title: "no skip set"})}
    assert found["swift"].left_out == "no skip set"
    assert found["clasp"].left_out == NOT_TIMED
    assert found["swift"].best is None
    assert found["ngram"].left_out is None


def test_a_plan_that_fails_on_held_out_prompts_stays_with_its_reason() -> None:
    def refuse(plan: DraftPlan, ids: tuple[int, ...]) -> float:
        if plan == SKIP and ids[0] == 3:
            raise NumericalError("not a number")
        return 1.0 / SPEEDS.get(plan, 1.0)

    found = {row.family: row for row in families(LOOKUP, SKIP, make_engine=ScriptedFactory(refuse))}
    failed = found["layer_skip"].best
    assert failed is not None
    assert failed.failure == "not a number"
    assert (failed.results, failed.draft_cost) == ((), None)
    assert found["ngram"].is_fastest


def test_the_best_plan_of_a_family_went_through_all_prompts() -> None:
    other = plan_of(NGRAM, kind="fixed", num_draft_tokens=7)
    lucky = [timed(LOOKUP, 1.3), timed(other, 1.9, num_prompts=2, decode_s=1.0)]
    found = {each.family.name: each for each in contestants(lucky, {}, num_prompts=4)}
    assert found["ngram"].best == lucky[0]
    assert found["ngram"].num_timed == 2
    assert found["ngram"].search_s == 4.0
    only = {each.family.name: each for each in contestants(lucky[1:], {}, num_prompts=4)}
    assert only["ngram"].best == lucky[1]


def test_the_calibrated_plan_is_compared_with_the_fastest_family_of_its_memory() -> None:
    result = calibrated(SKIP, LOOKUP, SKIP, COPY)
    assert result.fastest_family == "ngram"
    assert result.against_fastest is not None
    assert result.against_fastest.value == pytest.approx(0.8 / 1.5)
    larger = calibrated(LOOKUP, LOOKUP, SKIP, COPY, step="quantized")
    assert larger.fastest_family == "quantized"
    assert larger.against_fastest is not None
    assert larger.against_fastest.value == pytest.approx(1.5 / 2.0)


def test_the_very_plan_of_the_fastest_family_needs_no_comparison() -> None:
    result = calibrated(LOOKUP, LOOKUP, SKIP)
    assert result.fastest_family == "ngram"
    assert result.against_fastest is None


def test_follow_ups_are_measured_after_what_they_follow() -> None:
    def follow_up(prompt: Any, block: Any) -> Any:
        (first, second) = scripted_prompts(2)
        return second if prompt == first and block.runs else None

    runs = HeldOut(
        make_engine=ScriptedFactory(lambda plan, ids: 1.0),
        prompts=scripted_prompts(1),
        settings=(GREEDY,),
        margin=_no_margin,
        follow_up=follow_up,
    ).measure([LOOKUP])
    assert [prompt.prompt_id for prompt, _ in runs.runs(LOOKUP)] == ["p0", "p1"]
    (pair,) = runs.pairs(LOOKUP)
    assert (pair.prompt_id, pair.plan_tokens) == ("p0", 40), "turns of one question are one prompt"
